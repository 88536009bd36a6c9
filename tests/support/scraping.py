"""What `/metrics` says, read by Prometheus' own parser."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

BOUND_S = 30
PREFIX = "tornado_signal_"


class Scrape:
    """One answer of `/metrics`.

    Attributes:
        text: as it came.
        families: the metrics by their names.
    """

    def __init__(self, text):
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}

    def all(self, name, sample=None):
        """The values of a metric of ours, by what its labels say in the order of their names."""
        samples = self.families[PREFIX + name].samples
        wanted = PREFIX + (sample or name)
        found = {tuple(value for _, value in sorted(each.labels.items())): each.value for each in samples}
        assert len(found) == len(samples) or sample, "two samples with the same labels"
        return {
            tuple(value for _, value in sorted(each.labels.items())): each.value
            for each in samples
            if each.name in (wanted, wanted + "_total")
        }

    def one(self, name, *labels):
        """The value of a metric of ours; 0 if it has none with such labels."""
        return self.all(name).get(labels, 0)

    def histogram(self, name, *labels):
        """Of a histogram: the cumulated counts by their upper ends, the number of values, and their sum."""
        samples = self.families[PREFIX + name].samples
        mine = [each for each in samples if tuple(v for k, v in sorted(each.labels.items()) if k != "le") == labels]
        buckets = {each.labels["le"]: each.value for each in mine if each.name.endswith("_bucket")}
        (number,) = [each.value for each in mine if each.name.endswith("_count")]
        (total,) = [each.value for each in mine if each.name.endswith("_sum")]
        return buckets, number, total


def scrape(admin_url):
    """Ask a server's admin listener."""
    with urllib.request.urlopen(admin_url + "/metrics", timeout=BOUND_S) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        return Scrape(response.read().decode())
