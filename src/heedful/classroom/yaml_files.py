"""YAML that teachers write: words stay words."""

from __future__ import annotations

import re
from typing import Any

import yaml


class WordLoader(yaml.SafeLoader):
    """A loader for which “on”, “off”, “no” and “yes” are words; YAML 1.1 has them as true and false."""


WordLoader.yaml_implicit_resolvers = {
    letter: [rule for rule in rules if not rule[0].endswith(":bool")]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
WordLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))


def load_yaml(text: str) -> Any:
    """Return the values of a YAML text."""
    return yaml.load(text, WordLoader)
