"""Topics' numbers are of one database, and a restore is another one."""

from __future__ import annotations

from penstock.stores.sqlite.topic_rows import NameBook


def test_a_reader_of_the_state_before_a_restore_does_not_lend_its_numbers_to_others() -> None:
    book = NameBook()
    writer = book.of("after-2")
    reader = book.of("before-1")
    reader.add({"orders": 7})

    assert writer.ids == {}
    assert book.of("after-2").ids == {}


def test_names_are_remembered_while_the_epoch_lasts() -> None:
    book = NameBook()
    book.of("a-1").add({"orders": 7})

    assert book.of("a-1").ids == {"orders": 7}
    assert book.of("a-1").names == {7: "orders"}
