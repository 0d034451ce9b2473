"""Choices, spaces and architectures."""

from __future__ import annotations

import json
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_spaces import VALUES, easnet_space, printed, small_space, spaces

from vizoo.nas.space import Architecture, Choice, SearchSpace

seeds = st.integers(0, 2**32).map(random.Random)


def one_line(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert text and "\n" not in text and len(text) < 250
    return text


@given(spaces())
def test_enumerate_gives_each_architecture_once(space):
    found = list(space.enumerate())
    assert len(found) == space.count() == len(set(found))
    assert found[0] == space.smallest()
    assert space.largest() in found
    assert all(a in space for a in found)


@given(spaces())
def test_architectures_are_equal_exactly_if_what_matters_is(space):
    """By brute force: every assignment of every choice, whether it matters or not."""
    assignments = [{}]
    for choice in space:
        assignments = [{**a, choice.name: v} for a in assignments for v in choice.values]
        if len(assignments) > 2000:
            return
    kinds = {}
    for assignment in assignments:
        canonical = space.validate(assignment)
        assert space.validate(canonical) == canonical
        matters = {n: v for n, v in assignment.items() if canonical[n] is not None}
        assert kinds.setdefault(canonical, matters) == matters
    assert len(kinds) == space.count()
    assert len({json.dumps(m, sort_keys=True) for m in kinds.values()}) == len(kinds)


@given(spaces(), seeds)
def test_everything_drawn_is_a_canonical_architecture_of_the_space(space, rng):
    a, b = space.sample(rng), space.sample(rng)
    mutated = space.mutate(a, rng, rng.random())
    found = [a, b, mutated, space.crossover(a, b, rng), space.largest(), space.smallest()]
    assert all(x in space and tuple(x) == space.names for x in found + space.neighbours(a))
    assert mutated != a or space.count() == 1
    assert space.crossover(a, a, rng) == a


@given(spaces(), seeds)
def test_build_asks_for_what_matters_and_nothing_else(space, rng):
    asked = []

    def pick(choice):
        asked.append(choice.name)
        return rng.choice(choice.values)

    a = space.build(pick)
    assert a in space and len(asked) == len(set(asked))
    assert set(asked) == {name for name in a if a[name] is not None}
    # What a space has made it does not check again; an equal one from elsewhere it does.
    assert space.validate(a) is a and space.validate(pickle.loads(pickle.dumps(a))) == a


@given(spaces(), seeds)
def test_neighbours_differ_in_one_choice(space, rng):
    a = space.sample(rng)
    found = space.neighbours(a)
    assert len(found) == len(set(found)) and a not in found
    assert len(found) == sum(len(c.values) - 1 for c in space if a[c.name] is not None)
    for other in found:
        assert sum(None not in (a[n], other[n]) and a[n] != other[n] for n in space.names) == 1
    assert found == [other for name in space.names for other in space.neighbours(a, name)]


@given(spaces(), seeds)
def test_a_restricted_space_is_a_part(space, rng):
    keep = {c.name: rng.sample(c.values, rng.randint(1, len(c.values))) for c in space}
    allowed = {name: keep[name] for name in keep if rng.random() < 0.7}
    part = space.restrict(allowed)
    assert part.names == space.names
    inside = set(part.enumerate())
    assert inside == {
        a
        for a in space.enumerate()
        if all(a[n] is None or a[n] in values for n, values in allowed.items())
    }
    assert SearchSpace.from_json(part.to_json()) == part


@given(spaces())
def test_encodings_tell_architectures_apart(space):
    found = list(space.enumerate())
    codes = {tuple(space.encode(a)) for a in found}
    assert len(codes) == len(found)
    assert {len(code) for code in codes} == {sum(len(c.values) for c in space)}
    assert all(set(code) <= {0.0, 1.0} for code in codes)


@given(spaces(), seeds)
def test_json_there_and_back(space, rng):
    again = SearchSpace.from_json(json.loads(json.dumps(space.to_json())))
    assert again == space and again.digest == space.digest and hash(again) == hash(space)
    a = space.sample(rng)
    copy = Architecture.from_json(json.loads(json.dumps(a.to_json())))
    assert copy == a and hash(copy) == hash(a) and copy.digest == a.digest
    shuffled = Architecture(dict(rng.sample(list(a.items()), len(a))))
    assert shuffled == a and hash(shuffled) == hash(a) and shuffled.digest == a.digest
    assert pickle.loads(pickle.dumps(a)) == a
    assert pickle.loads(pickle.dumps(space)) == space


def test_easnet_is_counted_without_listing():
    """So many architectures would take years one by one."""
    space = easnet_space()
    assert space.count() == 22608**2 + 22608**3 + 22608**4
    assert space.restrict({"s": [2]}).count() == 22608**2
    assert space.restrict({"d.*": [2], "s": [3, 4]}).count() == 144**3 + 144**4


@pytest.mark.parametrize("length", [30, 100])
def test_chains_and_stars_are_counted(length):
    names = [f"c{i}" for i in range(length)]
    chain = {b: [{a: (1,)}] for a, b in zip(names, names[1:], strict=False)}
    assert SearchSpace([Choice(n, (0, 1)) for n in names], chain).count() == length + 1
    star = {"last": [{n: (1,)} for n in names]}
    space = SearchSpace([*(Choice(n, (0, 1)) for n in names), Choice("last", (1, 2, 3))], star)
    assert space.count() == 3 * (2**length - 1) + 1
    assert "10^" in repr(space)


@pytest.mark.parametrize("by_kind", [True, False])
def test_many_chains_are_counted_at_once(by_kind):
    """In whichever order they are listed: block by block, or kind by kind."""
    kinds = {"on": (0, 1), "op": ("conv", "skip"), "kernel": (3, 5, 7)}
    names = [(kind, i) for kind in kinds for i in range(30)]
    names = names if by_kind else sorted(names, key=lambda pair: pair[1])
    choices = [Choice(f"{kind}{i}", kinds[kind]) for kind, i in names]
    chains = {f"op{i}": [{f"on{i}": (1,)}] for i in range(30)}
    chains |= {f"kernel{i}": [{f"op{i}": ("conv",)}] for i in range(30)}
    assert SearchSpace(choices, chains).count() == (1 + 3 + 1) ** 30
    chains["last"] = [{f"kernel{i}": (7,)} for i in range(30)]
    space = SearchSpace([*choices, Choice("last", (1, 2))], chains)
    assert space.count() == 2 * 5**30 - 4**30


@pytest.mark.parametrize("by_kind", [True, False])
def test_a_wide_tree_is_counted_at_once(by_kind):
    names = [
        *(("block", i, 0) for i in range(30)),
        *(("k", i, j) for j in range(4) for i in range(30)),
    ]
    names = names if by_kind else sorted(names, key=lambda name: name[1])
    choices = [Choice("all", (0, 1)), *(Choice(f"{k}{i}.{j}", (0, 1)) for k, i, j in names)]
    tree = {f"block{i}.0": [{"all": (1,)}] for i in range(30)}
    tree |= {f"k{i}.{j}": [{f"block{i}.0": (1,)}] for i in range(30) for j in range(4)}
    assert SearchSpace(choices, tree).count() == 1 + (1 + 2**4) ** 30


def test_small_counts_are_shown_plainly():
    def shown(*counts):
        return repr(SearchSpace([Choice(f"c{i}", tuple(range(n))) for i, n in enumerate(counts)]))

    assert shown(3, 2) == "SearchSpace(2 choices, 6 architectures)"
    assert shown(50, 50) == "SearchSpace(2 choices, 2,500 architectures)"
    assert shown(1000, 1000) == "SearchSpace(2 choices, 10^6.0 architectures)"


def test_sampling_is_uniform_over_each_choice():
    space, rng = small_space(), random.Random(0)
    drawn = [space.sample(rng) for _ in range(3000)]
    for name in ("depth", "blocks.2.kernel"):
        values = [a[name] for a in drawn if a[name] is not None]
        assert all(0.28 < values.count(v) / len(values) < 0.39 for v in set(values))
    assert [space.sample(random.Random(7)) for _ in range(2)] == [
        space.sample(random.Random(7))
    ] * 2


def test_mutation_changes_about_as_much_as_asked():
    space, rng = easnet_space().restrict({"s": [4], "d.*": [4]}), random.Random(0)
    a = space.largest()
    for probability, changed in ((0.0, 1), (0.5, 16), (1.0, 32)):
        others = [space.mutate(a, rng, probability) for _ in range(200)]
        mean = sum(sum(a[n] != b[n] for n in a) for b in others) / len(others)
        assert abs(mean - changed) < 1
    with pytest.raises(ValueError, match="between 0 and 1"):
        space.mutate(a, rng, 1.5)


def test_a_space_without_choices_has_one_architecture():
    space = SearchSpace([])
    assert space and space.count() == 1 and list(space.enumerate()) == [Architecture({})]
    assert space.mutate(Architecture({}), random.Random(0)) in space


def test_conditions_are_simplified():
    a, b, c = Choice("a", (1, 2)), Choice("b", (1, 2)), Choice("c", (1, 2))
    always = SearchSpace([a, b], {"b": [{"a": (1, 2)}]})
    assert always == SearchSpace([a, b], {"b": [{"a": (1,)}, {}]}) == SearchSpace([a, b])
    wide = [{"a": (1,)}, {"a": (1,), "b": (2,)}, {"a": [1]}]
    assert SearchSpace([a, b, c], {"c": wide}).conditions["c"] == ({"a": (1,)},)
    never = SearchSpace([a, b, c], {"b": [], "c": [{"b": (1,)}, {"a": (2,), "b": (2,)}]})
    assert never.conditions["c"] == () and never.count() == 2
    # A choice that may be unused has to be asked about, even for all of its values.
    asked = SearchSpace([a, b, c], {"b": [{"a": (2,)}], "c": [{"b": (1, 2)}]})
    assert asked.count() == 5


def test_validate_returns_the_own_values():
    space = SearchSpace([Choice("k", (3, 5)), Choice("on", (False, True))])
    assert repr(space.validate({"on": True, "k": 5.0})) == "Architecture({'k': 5, 'on': True})"
    for wrong in ({"k": 3, "on": 1}, {"k": True, "on": True}, {"k": "3", "on": True}):
        with pytest.raises(ValueError, match="cannot be"):
            space.validate(wrong)
    assert {"k": 3, "on": True} not in space
    assert Architecture({"k": 3, "on": True}) in space
    assert Architecture({"k": 3}) not in space
    with pytest.raises(ValueError, match="^'smallest' is no architecture: give a value for each"):
        space.validate("smallest")


def test_what_does_not_matter_may_be_missing_but_not_wrong():
    space = small_space()
    short = {"depth": 1, "blocks.0.kernel": 3, "blocks.0.width": 8}
    assert space.validate(short) == space.smallest()
    assert space.validate({**short, "blocks.2.width": 24}) == space.smallest()
    assert Architecture({**space.smallest(), "blocks.2.width": 24}) not in space
    with pytest.raises(ValueError, match=r"'blocks\.2\.width' cannot be 25; allowed: 8, 16, 24"):
        space.validate({**short, "blocks.2.width": 25})


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ({"detph": 1}, ["'detph'", "did you mean 'depth'"]),
        ({"other": 1}, ["'other'", "known are 'depth', 'blocks.0.kernel'"]),
        ({"depth": 4}, ["'depth' cannot be 4", "1, 2, 3"]),
        ({"depth": [1]}, ["'depth' cannot be [1]"]),
        ({"depth": 1, "blocks.0.kernel": 3}, ["'blocks.0.width' is missing", "8, 16, 24"]),
        ({"depth": None}, ["'depth' is None, and it matters"]),
        ({}, ["'depth' is missing"]),
    ],
)
def test_wrong_architectures_are_named_in_one_line(architecture, words):
    with pytest.raises(ValueError) as error:
        small_space().validate(architecture)
    assert all(word in one_line(error) for word in words)


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        ({"size": [1]}, ["'size'", "known are"]),
        ({"depht": [1]}, ["did you mean 'depth'"]),
        ({"blocks.*.kernel": [4]}, ["'blocks.*.kernel' cannot be 4", "3, 5, 7"]),
        ({"depth": []}, ["leaves choice 'depth' without values"]),
        ({"depth": 2}, ["needs a list"]),
        ({"depth": "12"}, ["needs a list"]),
        ({"blocks.*.width": [8], "blocks.1.*": [16, 3, 5, 7]}, ["'blocks.1.width' without"]),
    ],
)
def test_restrictions_that_cannot_be(allowed, words):
    with pytest.raises(ValueError) as error:
        small_space().restrict(allowed)
    assert all(word in one_line(error) for word in words)


def test_patterns_and_names_with_brackets():
    space = SearchSpace([Choice("stages[0].k", (3, 5)), Choice("stages[1].k", (3, 5, 7))])
    part = space.restrict({"stages[1].k": [7, 3], "*.k": [3, 7]})
    assert [c.values for c in part] == [(3,), (3, 7)]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("", (1,), "string"),
        (3, (1,), "string"),
        ("k", (), "at least one value"),
        ("k", "35", "at least one value"),
        ("k", None, "at least one value"),
        ("k", (3, 3), "twice"),
        ("k", (1, True), "twice"),
        ("k", (7, 5, 3), "ascending"),
        ("k", (3, None), "None"),
        ("k", (1.0, float("inf")), "finite"),
        ("k", ([1], [2]), "cannot have the value"),
    ],
)
def test_wrong_choices(name, values, words):
    with pytest.raises(ValueError, match=words) as error:
        Choice(name, values)
    one_line(error)


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"x": [{"a": (1,)}]}, "given for 'x'"),
        ({"a": [{"x": (1,)}]}, "asks about 'x'"),
        ({"a": [{"b": (3,)}]}, "does not have"),
        ({"a": [{"b": ()}]}, "list of values"),
        ({"a": [{"b": 1}]}, "list of values"),
        ({"a": {"b": (1,)}}, "list of mappings"),
        ({"a": ["b"]}, "list of mappings"),
        ({"a": [{"a": (1,)}]}, "depend on each other: 'a'"),
        ({"a": [{"b": (1,)}], "b": [{"a": (1,)}]}, "depend on each other: 'a', 'b'"),
    ],
)
def test_wrong_conditions(conditions, words):
    with pytest.raises(ValueError, match=words) as error:
        SearchSpace([Choice("a", (1, 2)), Choice("b", (1, 2))], conditions)
    one_line(error)


def test_names_are_unique():
    with pytest.raises(ValueError, match="two choices"):
        SearchSpace([Choice("a", (1,)), Choice("a", (2,))])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["version", "choices", "conditions", "name", "values", "c0"]), inner
        )
    ),
    max_leaves=8,
)
malformed = st.one_of(
    anything,
    st.fixed_dictionaries({"version": st.just(1), "choices": anything, "conditions": anything}),
    st.fixed_dictionaries(
        {
            "version": st.just(1),
            "choices": st.just([{"name": "c0", "values": [1, 2]}, {"name": "c1", "values": [0]}]),
            "conditions": st.fixed_dictionaries({"c1": anything}),
        }
    ),
)


@given(malformed)
def test_malformed_json_is_one_line(data):
    for cls in (SearchSpace, Architecture):
        try:
            cls.from_json(data)
        except ValueError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "not an architecture"),
        ({"choices": {}}, "not an architecture"),
        ({"version": 2, "choices": {}}, "version 2; this vizoo reads 1"),
        ({"version": 2, "genes": []}, "version 2; this vizoo reads 1"),
        ({"version": True, "choices": {}}, "version True"),
        ({"version": 1}, '"choices"'),
        ({"version": 1, "choices": {"a": [1]}}, "'a' cannot have the value"),
        ({"version": 1, "choices": {"a": 1}, "chioces": 2}, "'chioces'"),
    ],
)
def test_malformed_architectures(data, words):
    with pytest.raises(ValueError, match=words):
        Architecture.from_json(data)
    with pytest.raises(ValueError):
        SearchSpace.from_json(data)


def test_architecture_files(tmp_path):
    a = small_space().smallest()
    path = a.save(tmp_path / "new" / "a.json")
    assert Architecture.load(path) == a
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(FileNotFoundError, match="no such file"):
        Architecture.load(tmp_path / "b.json")
    for text in ("{", "[1]", "NaN", "\x00", '{"version": 1}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"a\.json: not an architecture") as error:
            Architecture.load(path)
        one_line(error)


def test_architectures_are_immutable_mappings():
    a = Architecture({"depth": 2, "stages.0.k": 3})
    assert a.replace({"stages.0.k": 5}, depth=1) == Architecture({"stages.0.k": 5, "depth": 1})
    assert a["depth"] == 2 and dict(a) == {"depth": 2, "stages.0.k": 3} and len({a, a}) == 1
    assert a != {"depth": 2, "stages.0.k": 3}
    with pytest.raises(ValueError, match="did you mean 'depth'"):
        a.replace(dept=1)
    with pytest.raises(TypeError):
        a["depth"] = 3


def test_digests_do_not_depend_on_the_process():
    code = (
        "from vizoo.nas.space import Architecture, Choice, SearchSpace\n"
        "a = Architecture({'op': 'conv', 'w': 0.5, 'on': True, 'k': 3, 'x': None})\n"
        "s = SearchSpace([Choice('op', ('conv', 'skip')), Choice('k', (3, 5))],"
        " {'k': [{'op': ('conv',)}]})\n"
        "import sys\n"
        "print(a.digest, s.digest, 'torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    assert printed(code).split()[2:] == ["False", "False"]


def test_a_choice_names_its_ends():
    for values in VALUES:
        choice = Choice("c", list(values))
        assert (choice.smallest, choice.largest) == (values[0], values[-1])
        assert {choice: 1}[Choice("c", values)] == 1
