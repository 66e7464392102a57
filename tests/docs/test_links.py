"""Links lead somewhere, and every page can be reached."""

from pathlib import PurePosixPath

import pytest

from tests.docs.pages import GENERATED, ROOT, Page, get_page, list_pages


def resolve_target(source: Page, target: str) -> str:
    """The path from the checkout that a link of a page leads to; the page itself for a mere anchor."""
    path = target.partition("#")[0]
    resolved = (ROOT / PurePosixPath(source.name).parent / path).resolve() if path else ROOT / source.name
    return str(resolved.relative_to(ROOT))


@pytest.mark.parametrize("source", list_pages(), ids=lambda source: source.name)
def test_links_resolve(source: Page) -> None:
    broken = []
    for target in source.links:
        if target.startswith("https://"):
            continue
        name, anchor = resolve_target(source, target), target.partition("#")[2]
        if name in GENERATED and not (ROOT / name).exists():
            continue  # not written yet in this checkout
        if not (ROOT / name).exists() or (anchor and anchor not in Page(name).anchors):
            broken.append(target)
    assert broken == []


def test_the_readme_leads_to_every_page() -> None:
    reached, waiting = {"README.md"}, [get_page("README.md")]
    while waiting:
        source = waiting.pop()
        for name in {resolve_target(source, target) for target in source.links if "://" not in target} - reached:
            reached.add(name)
            waiting += [page for page in list_pages() if page.name == name]
    assert {page.name for page in list_pages()} | set(GENERATED) <= reached
