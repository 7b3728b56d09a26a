"""The built-in page, as somebody sees and uses it."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Page

DEADLINE_MS = 20_000


class Tab:
    """The built-in page, as somebody sees and uses it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        """What the browser complained about."""
        self.requested: list[str] = []
        page.set_default_timeout(DEADLINE_MS)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.requested.append(request.url))

    def wait_for_state(self, state: str) -> None:
        self.page.wait_for_selector(f'#state[data-state="{state}"]')

    def wait_for_row(self, text: str) -> None:
        """Until a message with this in its payload is shown."""
        self.page.locator(".payload", has_text=text).first.wait_for()

    def shown(self) -> list[str]:
        """The payloads that are shown, oldest first."""
        return self.page.locator("#rows > li:not([hidden]) .payload").all_inner_texts()[::-1]

    def publish(self, payload: str) -> None:
        self.page.get_by_label("Payload").fill(payload)
        self.page.get_by_role("button", name="Publish").click()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)
