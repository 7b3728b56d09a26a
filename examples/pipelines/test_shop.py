"""The pipeline, tested on a few orders: no store, no stream."""

from shop import revenue

from penstock.testing import run_pipeline

MORNING = "2026-01-01T08:15:00Z"


def test_revenue_is_added_up_by_hour_and_item() -> None:
    orders = [
        {"item": "tea", "amount": 3.0, "placed_at": MORNING},
        {"item": "tea", "amount": 4.5, "placed_at": "2026-01-01T08:59:59Z"},
        {"item": "tea", "amount": 100.0, "placed_at": "2026-01-01T09:00:00Z"},
    ]
    rows = sorted(run_pipeline(revenue, orders), key=lambda row: row["key"])

    assert [row["key"] for row in rows] == ["08:00 tea", "09:00 tea"]
    assert [(row["value"]["orders"], row["value"]["amount"]) for row in rows] == [
        (2, 7.5),
        (1, 100.0),
    ]


def test_small_orders_can_be_left_out() -> None:
    orders = [{"item": "tea", "amount": amount, "placed_at": MORNING} for amount in (1.0, 5.0)]
    [row] = run_pipeline(revenue, orders, above=2.0)

    assert row["value"]["orders"] == 1


def test_a_broken_order_is_no_order() -> None:
    assert run_pipeline(revenue, [b"{broken", {"other": "thing"}]) == []
