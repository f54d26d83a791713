# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses: which are refused, what is never shown of them, and which are the same."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core import urls

NONE = [
    "http://a..b:8000",
    "http://.",
    "http://" + "a" * 64 + ":1",
    "http://h\udcff:1",
    "http://a b",
    "http://a_b!c",
    "http://[::1",
    "http://h:99999",
]


@pytest.mark.parametrize("url", NONE, ids=ascii)
def test_what_is_no_address(url):
    assert urls.problem_with(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "http://spark-1.local.:8000/v1",
        "http://[fe80::1%25eth0]:1",
        "http://my_node:8000",
        "http://größe.example",
    ],
)
def test_what_is_an_address(url):
    assert urls.problem_with(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://u:s3cret/x@h:80",
        "http://u:1234/x@h:80",
        "http://u:s3cret?x@h",
        "http://u:s3cret#x@h",
        "http://u:s3cret@h x",
    ],
)
def test_a_password_is_never_repeated(url):
    problem = urls.problem_with(url)
    assert problem
    for secret in ("s3cret", "1234"):
        assert secret not in problem + urls.redacted(url)


SAME = [
    ("http://127.0.0.1:8000", "http://localhost:8000/"),
    ("http://[::1]:8000", "http://LOCALHOST:8000/v1"),
    ("http://h", "http://h:80"),
    ("https://h:443", "https://H."),
]
OTHERS = [("http://h/A", "http://h/a"), ("http://h:80", "http://h:81"), ("http://h:443", "https://h")]


@pytest.mark.parametrize(("one", "other"), SAME, ids=str)
def test_spellings_of_one_address(one, other):
    assert urls.address(one) == urls.address(other)


@pytest.mark.parametrize(("one", "other"), OTHERS, ids=str)
def test_two_addresses(one, other):
    assert urls.address(one) != urls.address(other)
