"""No module imports itself by way of others: not for types, and not inside of functions."""

import grimp
import pytest


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, by Tarjan's algorithm.

    Args:
        imports: from each module to those that it imports.
    """
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_modules: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        open_modules.append(module)
        for imported in sorted(imports[module]):
            if imported not in numbers:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in open_modules:
                lowest[module] = min(lowest[module], numbers[imported])
        if lowest[module] == numbers[module]:
            first = open_modules.index(module)
            group = sorted(open_modules[first:])
            del open_modules[first:]
            if len(group) > 1:
                found.append(group)

    for module in sorted(imports):
        if module not in numbers:
            visit(module)
    return found


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        pytest.param({"a": {"b"}, "b": {"c"}, "c": set()}, [], id="a row"),
        pytest.param({"a": {"b", "c"}, "b": {"c"}, "c": set()}, [], id="two ways"),
        pytest.param({"a": {"b"}, "b": {"a"}}, [["a", "b"]], id="two modules"),
        pytest.param(
            {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b"}}, [["b", "c", "d"]], id="three"
        ),
    ],
)
def test_the_search_bites(imports, found):
    assert circles(imports) == found


def test_no_import_leads_back():
    graph = grimp.build_graph("airflow_provider_deltaforge", exclude_type_checking_imports=False)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}

    assert circles(imports) == []
