"""The metrics of a server, parsed by Prometheus' own parser."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

BOUND_S = 30
PREFIX = "tornado_signal_"


class Scrape:
    """A response of `/metrics`: the text and the metric families by name."""

    def __init__(self, text):
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}

    def all(self, name):
        """Return the values of one of our metrics by label values, which are in the order of the label names."""
        samples = self.families[PREFIX + name].samples
        assert len({_labels(each) for each in samples}) == len(samples), "two samples with the same labels"
        return {_labels(each): each.value for each in samples}

    def one(self, name, *labels):
        return self.all(name).get(labels, 0)

    def histogram(self, name, *labels):
        """Return the cumulative counts of a histogram by upper bound, the number of values, and their sum."""
        mine = [sample for sample in self.families[PREFIX + name].samples if _labels(sample, without="le") == labels]
        buckets = {each.labels["le"]: each.value for each in mine if each.name.endswith("_bucket")}
        (number,) = [each.value for each in mine if each.name.endswith("_count")]
        (total,) = [each.value for each in mine if each.name.endswith("_sum")]
        return buckets, number, total


def _labels(sample, without=None):
    return tuple(value for name, value in sorted(sample.labels.items()) if name != without)


def scrape(admin_url):
    with urllib.request.urlopen(admin_url + "/metrics", timeout=BOUND_S) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        return Scrape(response.read().decode())
