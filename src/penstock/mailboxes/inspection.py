"""Looking for damage: every byte that a checksum covers is read, and nothing is changed.

A box is looked at under its lock, so that what is half written is not taken for damaged; everybody
goes on working. What a crash leaves and the next opening mends is told, too, as harmless.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

import msgspec

from penstock.mailboxes import commit_log
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.listing import box_folders
from penstock.mailboxes.record import (
    COPY_SIZE,
    HEADER_SIZE,
    Header,
    Record,
    Type,
    find_salt,
    scan,
)
from penstock.mailboxes.recovery import is_unnamed, message_files
from penstock.mailboxes.shelf import PREFIX, path_of
from penstock.mailboxes.state import NAME, NOTHING, State, Whole, has_end, parse_line
from penstock.mailboxes.state_log import read_state, read_whole

LOG_TRIES = 3
"""Another process may be writing to its log while it is read."""

Progress = Callable[[int, int], None]


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it was written."""

    mailbox: str
    """Its name, or that of its folder if its files do not tell."""
    file: str
    """Below the folder of all mailboxes."""
    reason: str
    start: int = 0
    end: int = 0
    missing: int = 0
    """Messages nobody has acknowledged that cannot be read."""
    is_harmless: bool = False
    """Nobody misses anything: it was acknowledged, or never promised, or is there twice."""


class Inspection(msgspec.Struct, frozen=True):
    """What was looked at, and what was found."""

    mailboxes: int
    messages: int
    """That wait, and can be read."""
    findings: list[Finding]

    @property
    def is_clean(self) -> bool:
        return not self.findings


class BoxFiles(msgspec.Struct, frozen=True):
    """What can be read of a box, whatever it looks like."""

    state: State | None
    whole: Whole
    records: list[tuple[int, Record]]
    """With the numbers of their files."""
    findings: list[Finding]
    read_seq: int
    """The first that is not acknowledged. Without a state, all are that."""
    gaps: list[tuple[int, int]]
    """Numbers, first and last, of messages that were promised and are gone."""

    @property
    def waiting(self) -> dict[int, Record]:
        """What is not acknowledged, by its number. The last of those there twice."""
        kinds = (Type.MESSAGE, Type.QUOTA, Type.GAP)
        return {
            record.seq: record
            for _, record in self.records
            if record.type in kinds and record.last_seq >= self.read_seq
        }


def verify(folder: Folder, id: str | None, progress: Progress) -> Inspection:
    """Look at one mailbox, or at all of them and the logs."""
    if id is not None:
        paths = [folder.folder_of(hashlib.sha256(id.encode()).digest())]
    else:
        paths = list(box_folders(f"{folder.root}/boxes", folder.depth))
    findings: list[Finding] = []
    messages = 0
    for number, path in enumerate(paths, 1):
        digest = bytes.fromhex(path.removeprefix(f"{folder.root}/boxes/").replace("/", ""))
        with folder.holding(digest):
            found = read_box(folder, path, digest)
        findings += found.findings
        messages += len(found.waiting)
        progress(number, len(paths))
    if id is None:
        findings += _verify_logs(folder)
    return Inspection(len(paths), messages, findings)


def read_box(folder: Folder, path: str, digest: bytes) -> BoxFiles:
    """Under its lock."""
    try:
        names = folder.disk.list(path)
    except (FileNotFoundError, NotADirectoryError):
        return BoxFiles(None, NOTHING, [], [], 1, [])
    return _Looking(folder, path, digest, names).look()


class _Looking:
    def __init__(self, folder: Folder, path: str, digest: bytes, names: list[str]) -> None:
        self._folder = folder
        self._path = path
        self._digest = digest
        self._names = names
        self._name = path.removeprefix(f"{folder.root}/")
        self._findings: list[Finding] = []
        self._first_seqs: list[int] = []
        self._records: list[tuple[int, Record]] = []
        self._files = message_files(names)
        self._state = read_state(folder.disk, path)[0]
        self._whole = max(
            NOTHING if self._state is None else self._state.whole, folder.promised(digest)
        )

    def look(self) -> BoxFiles:
        for name in sorted(self._names):
            if name == NAME or (name.startswith("queue.") and name.endswith(".log")):
                self._look_at_state(name)
        if self._state is not None:
            # Those before were read through, and wait to be removed.
            self._files = [file for file in self._files if file >= self._state.read_file]
            if is_unnamed(self._names, self._state):
                name = f"{PREFIX}{self._state.read_file:016d}.log.new"
                self._find(name, "a repair was interrupted", is_harmless=True)
                self._look_at_file(self._state.read_file, name)
        for file in self._files:
            self._look_at_file(file, os.path.basename(path_of(self._path, file)))
        gaps = list(self._look_for_gaps())
        # Its name is known once a header was read.
        findings = [msgspec.structs.replace(f, mailbox=self._name) for f in self._findings]
        return BoxFiles(self._state, self._whole, self._records, findings, self._read_seq(), gaps)

    def _read_seq(self) -> int:
        if self._state is not None:
            return self._state.read_seq
        return min([*self._first_seqs, *[record.seq for _, record in self._records]], default=1)

    def _find(self, file: str, reason: str, start: int = 0, end: int = 0, **more: object) -> None:
        place = f"{self._path}/{file}".removeprefix(f"{self._folder.root}/")
        self._findings.append(
            Finding(self._name, place, reason, start, end, **more)  # type: ignore[arg-type]
        )

    def _look_at_state(self, name: str) -> None:
        """A line that is lost is a message that comes again.

        One without an end, whose number the next line has again, was never whole: who wrote it was
        killed, and who came next has begun a new line. That is no damage.
        """
        content = read_whole(self._folder.disk, f"{self._path}/{name}") or b""
        start, before = 0, None
        broken: list[tuple[int, int]] = []
        for line in content.split(b"\n"):
            end = start + len(line)
            state = parse_line(line) if line else None
            if state is not None:
                is_next = before is not None and state.n == before.n + 1
                if not is_next or any(has_end(content[slice(*place)]) for place in broken):
                    self._find_lines(name, "a line is damaged", broken)
                broken, before = [], state
                if end == len(content):
                    self._find_lines(name, "the last line has no end", [(start, end)])
            elif line and end == len(content):
                self._find_lines(name, "a line is cut off", [(start, end)])
            elif line:
                broken.append((start, end))
            start = end + 1
        self._find_lines(name, "a line is damaged", broken)

    def _find_lines(self, name: str, reason: str, lines: list[tuple[int, int]]) -> None:
        for start, end in lines:
            self._find(name, reason, start, end, is_harmless=True)

    def _look_at_file(self, file: int, name: str) -> None:
        content = read_whole(self._folder.disk, f"{self._path}/{name}") or b""
        salt = self._look_at_header(name, file, content)
        if salt is None:
            return
        done = 0
        if self._state is not None and self._state.read_file == file:
            done = self._state.read_byte
        for found in scan(content[HEADER_SIZE:], HEADER_SIZE, salt):
            if isinstance(found, Record):
                self._records.append((file, found))
                continue
            was_promised = (file, max(found.offset, done)) < self._whole[:2]
            is_cut = found.end == len(content) and not was_promised
            is_harmless = is_cut or found.end <= done
            reason = "cut off, and never promised" if is_cut else found.reason
            self._find(name, reason, found.offset, found.end, is_harmless=is_harmless)

    def _look_at_header(self, name: str, file: int, content: bytes) -> int | None:
        """The salt of its records; None if they are not to be read, or not this box's."""
        header = Header.decode(content)
        if header is None:
            is_harmless = (file, 0) >= self._whole[:2] and not any(content[HEADER_SIZE:])
            reason = "the header is damaged"
            self._find(name, reason, 0, min(len(content), HEADER_SIZE), is_harmless=is_harmless)
            return find_salt(content)
        if header.file != file or hashlib.sha256(header.id.encode()).digest() != self._digest:
            self._find(name, f"it is file {header.file} of {header.id!r}", 0, len(content))
            return None
        self._name = header.id
        self._first_seqs.append(header.first_seq)
        for start in (0, COPY_SIZE):
            if content[start : start + COPY_SIZE] != header.encode()[:COPY_SIZE]:
                reason = "one of two headers is damaged"
                self._find(name, reason, start, start + COPY_SIZE, is_harmless=True)
        return header.salt

    def _look_for_gaps(self) -> Iterator[tuple[int, int]]:
        """Numbers that nobody has acknowledged, and that are nowhere."""
        read_seq = self._read_seq()
        is_damaged = any(not finding.is_harmless for finding in self._findings)
        spans = sorted((record.seq, record.last_seq) for _, record in self._records)
        for first, last in missing_spans(spans, read_seq, self._whole[2]):
            reason = f"messages {first} to {last} are gone"
            count = last - first + 1
            # Without damage there are none before a file that begins later: power was lost.
            is_harmless = not is_damaged and first == read_seq >= self._whole[2]
            self._find(f"{PREFIX}*", reason, missing=count, is_harmless=is_harmless)
            if not is_harmless:
                yield first, last


def missing_spans(spans: list[tuple[int, int]], first: int, end: int) -> Iterator[tuple[int, int]]:
    """From `first` on, what none of these spans covers: between them, and before `end`."""
    expected = first
    for start, last in spans:
        if start > expected:
            yield expected, start - 1
        expected = max(expected, last + 1)
    if end > expected:
        yield expected, end - 1


def _verify_logs(folder: Folder) -> list[Finding]:
    """The logs of processes that are alive: behind damage there must be nothing."""
    commits = f"{folder.root}/commits"
    try:
        names = sorted(name for name in folder.disk.list(commits) if name.endswith(".log"))
    except FileNotFoundError:
        return []
    found = [_verify_log(folder, name) for name in names]
    return [finding for finding in found if finding is not None]


def _verify_log(folder: Folder, name: str) -> Finding | None:
    path = f"{folder.root}/commits/{name}"
    found: tuple[int, int, str] | None = None
    for _ in range(LOG_TRIES):
        end, is_in_use = folder.log_end(path)
        content = read_whole(folder.disk, path)
        if content is None or not is_in_use:
            return None
        found = commit_log.damage_of(content, end)
        if found is None:
            return None
    assert found is not None
    start, stop, reason = found
    return Finding("", f"commits/{name}", reason, start, stop)
