from collections import Counter

from grpo.metrics import metric_schema
from grpo.metrics.metric_schema import BY_NAME, SCHEMA, TIERS


def test_every_metric_is_described_once():
    assert [name for name, count in Counter(metric.name for metric in SCHEMA).items() if count > 1] == []
    for metric in SCHEMA:
        assert metric.tier in TIERS and metric.meaning, metric
        low, high = metric.healthy or (None, None)
        assert low is None or high is None or low < high, metric


def test_a_line_becomes_flat():
    row = {"step": 3, "time": 1.0, "seconds": {"train": 2.5}, "reward": 1, "new": 0.5, "text": "x", "none": None}
    assert metric_schema.flat(row) == {"seconds.train": 2.5, "reward": 1.0, "new": 0.5}
    assert {"seconds.train", "reward"} <= BY_NAME.keys()
