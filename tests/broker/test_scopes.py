"""Whose entries count, and what closes them: scopes, the client's settings, files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repl_trio.broker.config.entries import CLIENT, DISABLED, FAULT, NOT_OPENED, UNREADABLE, Entry, Snapshot
from repl_trio.broker.config.registry import Registry
from repl_trio.broker.grants import decide
from tests.broker.place import Place, fault, write


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


OPEN = {"command": "x", "brokerAllowed": True}


def test_only_the_projects_entries_are_there_unless_asked_for(place: Place) -> None:
    place.servers(p={"command": "x"})
    place.client_state(user={"u": OPEN}, local={"l": OPEN})
    assert set(place.look().entries) == {"p"}
    assert set(place.look("user").entries) == {"u"}
    assert set(place.look("local").entries) == {"l"}
    snapshot = place.look("project", "user", "local")
    assert {name: found.scope for name, found in snapshot.entries.items()} == {
        "p": "project",
        "u": "user",
        "l": "local",
    }
    assert Registry(str(place.project), place.environment, scopes=()).look() == Snapshot({})


def test_the_clients_entries_must_be_opened_one_by_one(place: Place) -> None:
    place.client_state(
        user={"shut": {"command": "x", "zzz": 1}, "open": OPEN}, local={"no": {**OPEN, "brokerAllowed": False}}
    )
    snapshot = place.look("user", "local")
    assert isinstance(snapshot.entries["open"], Entry)
    shut, no = fault(snapshot, "shut"), fault(snapshot, "no")
    assert (shut.rule, shut.field) == (NOT_OPENED, "brokerAllowed")
    assert 'of the user scope is used only with "brokerAllowed": true' in shut.reason
    assert (no.rule, no.reason) == (NOT_OPENED, "is false")


def test_a_project_can_close_an_entry_too(place: Place) -> None:
    place.servers(a={"command": "x", "brokerAllowed": False}, b={"command": "x", "brokerAllowed": True}, c=5)
    snapshot = place.look()
    assert fault(snapshot, "a").rule == NOT_OPENED
    assert isinstance(snapshot.entries["b"], Entry)
    assert fault(snapshot, "c").rule == FAULT


@pytest.mark.parametrize("strong", [{"command": "p"}, {"command": "p", "disabled": True}, {"command": "p", "zzz": 1}])
def test_a_stronger_scope_hides_a_weaker_one_whatever_has_become_of_it(place: Place, strong: object) -> None:
    place.servers(a=strong)
    place.client_state(user={"a": OPEN, "b": OPEN}, local={"a": OPEN, "b": {"command": "x"}})
    snapshot = place.look("project", "local", "user")
    assert snapshot.entries["a"].scope == "project"
    assert fault(snapshot, "b").scope == "local"  # not opened, and hides the user's all the same


def test_a_disabled_entry_is_told_from_a_faulty_one(place: Place) -> None:
    place.servers(a={"command": "p", "disabled": True}, b={"command": "p", "zzz": 1})
    snapshot = place.look()
    assert (fault(snapshot, "a").rule, fault(snapshot, "b").rule) == (DISABLED, FAULT)


def test_a_strong_file_that_cannot_be_read_closes_the_weaker_ones(place: Place) -> None:
    (place.project / ".mcp.json").write_text("{")
    place.client_state(user={"a": OPEN})
    snapshot = place.look("project", "user")
    assert fault(snapshot, "a").rule == UNREADABLE
    assert "could say otherwise, and is not JSON" in fault(snapshot, "a").reason
    assert len(snapshot.faults) == 1


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("project/.claude/settings.json", {"disabledMcpjsonServers": ["a"]}),
        ("project/.claude/settings.local.json", {"disabledMcpjsonServers": ["x", "a"]}),
        ("home/.claude/settings.json", {"disabledMcpServers": ["a"]}),
        ("home/.claude.json", {"projects": {"HERE": {"disabledMcpjsonServers": ["a"]}}}),
        ("home/.claude.json", {"projects": {"HERE": {"disabledMcpServers": ["a"]}}}),
    ],
)
def test_what_the_client_disables_is_not_granted(place: Place, file: str, content: object) -> None:
    path = place.project.parent / file
    place.servers(a={"command": "x"}, b={"command": "x"})
    path.write_text(json.dumps(content).replace("HERE", str(place.project)))
    snapshot = place.look()
    assert fault(snapshot, "a").rule == CLIENT
    assert str(path) in fault(snapshot, "a").reason
    assert decide(snapshot, "b").allowed
    # A file that the user names on the command line is no business of the client.
    assert decide(place.look(config=str(place.project / ".mcp.json")), "a").allowed


def test_a_named_file_is_not_judged_by_the_client_and_the_clients_entries_are(place: Place) -> None:
    named = place.project / "named.json"
    write(named, {"mcpServers": {"a": {"command": "x"}}})
    place.client_state(user={"u": OPEN}, disabledMcpServers=["a", "u"])
    snapshot = place.look("project", "user", config=str(named))
    assert decide(snapshot, "a").allowed
    assert fault(snapshot, "u").rule == CLIENT
    (place.project / ".claude/settings.json").write_text("{")
    assert place.look(config=str(named)).faults == ()


@pytest.mark.parametrize(
    "content",
    [
        {"enabledMcpjsonServers": [], "enableAllProjectMcpServers": False},
        {"disabledMcpjsonServers": None, "disabledMcpServers": []},
        {"projects": {"/elsewhere": {"disabledMcpjsonServers": ["a"]}}},
        {"projects": {}},
        {"disabledMcpjsonServers": ["A"], "anything": {"else": 1}},
    ],
)
def test_what_the_client_does_not_disable_is_granted(place: Place, content: object) -> None:
    place.servers(a={"command": "x"})
    for path in (place.project / ".claude/settings.json", place.home / ".claude.json"):
        write(path, content)
    assert decide(place.look(), "a").allowed


@pytest.mark.parametrize("raw", ["{", "[]", '{"disabledMcpjsonServers": "a"}', '{"disabledMcpServers": [1]}'])
def test_settings_that_cannot_be_read_close_what_they_could_disable(place: Place, raw: str) -> None:
    path = place.project / ".claude/settings.json"
    path.write_text(raw)
    place.servers(a={"command": "x"})
    snapshot = place.look()
    assert fault(snapshot, "a").rule == UNREADABLE
    assert str(path) in fault(snapshot, "a").reason
    (found,) = snapshot.faults
    assert (found.path, found.scope) == (str(path), "client")


@pytest.mark.parametrize("projects", [[], {"HERE": []}, {"HERE": {"mcpServers": []}}])
def test_a_state_file_of_another_shape_closes_what_it_could_disable(place: Place, projects: object) -> None:
    place.servers(a={"command": "x"})
    text = json.dumps({"projects": projects}).replace("HERE", str(place.project))
    (place.home / ".claude.json").write_text(text)
    assert fault(place.look(), "a").rule == UNREADABLE


def test_the_client_may_keep_its_files_elsewhere(place: Place, tmp_path: Path) -> None:
    place.servers(a={"command": "x"}, b={"command": "x"})
    place.client_state(disabledMcpServers=["a"])
    other = tmp_path / "other"
    other.mkdir()
    write(other / "settings.json", {"disabledMcpServers": ["b"]})
    write(other / ".claude.json", {"mcpServers": {"u": OPEN}})
    place.environment["CLAUDE_CONFIG_DIR"] = str(other)
    snapshot = place.look("project", "user")
    assert decide(snapshot, "a").allowed
    assert fault(snapshot, "b").rule == CLIENT
    assert isinstance(snapshot.entries["u"], Entry)


def test_without_a_home_there_are_only_the_projects_files(place: Place) -> None:
    place.servers(a={"command": "~/x", "cwd": "~/y"})
    place.client_state(user={"u": OPEN}, disabledMcpServers=["a"])
    del place.environment["HOME"]
    snapshot = place.look("project", "user")
    assert set(snapshot.entries) == {"a"}
    assert decide(snapshot, "a").allowed


def test_a_project_that_is_the_home_has_each_file_once(place: Place) -> None:
    place.environment["HOME"] = str(place.project)
    (place.project / ".claude/settings.json").write_text("{")
    place.servers(a={"command": "x"})
    assert len(place.look().faults) == 1


def test_a_named_file_that_is_missing_is_a_fault(place: Place) -> None:
    place.servers(a={"command": "x"})
    snapshot = place.look(config=str(place.project / "gone.json"))
    (found,) = snapshot.faults
    assert (found.scope, found.reason) == ("config", "does not exist")
    assert snapshot.entries == {}
