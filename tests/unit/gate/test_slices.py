"""EndpointSlices merged into endpoints."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._gate.slices import Slices

from tests.contract.gate.kube_api import slice_of


def endpoints(*items, port="http"):
    slices = Slices(port, "http", None)
    slices.replace(list(items))
    return [endpoint.url.removeprefix("http://") for endpoint in slices.endpoints()]


def pod(address, uid, **conditions):
    return {"addresses": [address], "conditions": conditions, "targetRef": {"uid": uid}}


def test_slices_are_merged_and_doubles_counted_once():
    assert endpoints(slice_of("a", "10.0.0.2", "10.0.0.1"), slice_of("b", "10.0.0.1", "10.0.0.3")) == [
        "10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080",
    ]  # fmt: skip


def test_ready_then_leaving_then_not_ready():
    ready = slice_of("a", "10.0.0.1")
    leaving = slice_of("b", "10.0.0.2", ready=False, serving=True, terminating=True)
    sick = slice_of("c", "10.0.0.3", ready=False, serving=False)
    gone = slice_of("d", "10.0.0.4", ready=False, serving=False, terminating=True)
    assert endpoints(sick, leaving, ready, gone) == ["10.0.0.1:8080"]
    assert endpoints(sick, leaving, gone) == ["10.0.0.2:8080"]
    assert endpoints(sick, gone) == ["10.0.0.3:8080", "10.0.0.4:8080"]


def test_absent_conditions_mean_ready():
    item = slice_of("a")
    item["endpoints"] = [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "conditions": {"ready": None}}]
    assert endpoints(item) == ["10.0.0.1:8080", "10.0.0.2:8080"]


def test_a_pod_of_two_address_families_is_one_endpoint():
    four, six = slice_of("a"), slice_of("b", kind="IPv6")
    four["endpoints"], six["endpoints"] = [pod("10.0.0.1", "u1")], [pod("fd00::1", "u1"), pod("fd00::2", "u2")]
    assert endpoints(four, six) == ["10.0.0.1:8080", "[fd00::2]:8080"]


def test_the_port_is_found_by_name_or_number():
    item = slice_of("a", "10.0.0.1")
    item["ports"] = [
        {"name": "metrics", "port": 9090},
        {"name": "http", "port": 8080},
        {"name": "u", "port": 53, "protocol": "UDP"},
    ]
    assert endpoints(item) == ["10.0.0.1:8080"]
    assert endpoints(item, port="9090") == ["10.0.0.1:9090"]
    assert endpoints(item, port="53") == []
    assert endpoints(item, port="grpc") == []


def malformed(**parts):
    """A slice of one endpoint, these parts of it replaced."""
    return {**slice_of("x", "10.0.0.9"), **parts}


MALFORMED = [
    {},
    {"metadata": None},
    malformed(addressType="FQDN"),
    malformed(addressType=["IPv4"]),
    malformed(ports=None, endpoints=None),
    malformed(endpoints=[{}]),
    malformed(endpoints=[None, "10.0.0.9", 5]),
    malformed(endpoints={"addresses": ["10.0.0.9"]}),
    malformed(endpoints=[{"addresses": {"0": "10.0.0.9"}}]),
    malformed(endpoints=[{"addresses": [None]}]),
    malformed(endpoints=[{"addresses": [167772169]}]),
    malformed(endpoints=[{"addresses": ["10.0.0.9\r\nX-Evil: 1"]}]),
    malformed(endpoints=[{"addresses": ["fd00::1"]}]),
    malformed(addressType="IPv6"),
    malformed(ports=[None, "http"]),
    malformed(ports=5),
    malformed(ports=[{"name": "http", "port": True}]),
    malformed(ports=[{"name": "http", "port": 99_999}]),
    malformed(ports=[{"name": "http", "port": 0}]),
]


@pytest.mark.parametrize("item", MALFORMED, ids=str)
def test_malformed_slices_are_passed_over(item):
    assert endpoints(item, slice_of("a", "10.0.0.1")) == ["10.0.0.1:8080"], "and take no other with them"


@pytest.mark.parametrize(
    "part", [{"targetRef": []}, {"targetRef": {"uid": ["u"]}}, {"conditions": "no"}, {"conditions": [True]}], ids=str
)
def test_what_is_malformed_beside_an_address_costs_no_endpoint(part):
    item = malformed(metadata="x", endpoints=[{"addresses": ["10.0.0.9"], **part}])
    assert endpoints(item) == ["10.0.0.9:8080"]
