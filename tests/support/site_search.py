"""What the search of the documentation site finds: python site_search.py SEARCHINDEX QUERY….

Runs with the Python of ``bin/venv docs``, which has Sphinx's stemmer. The rules and the scores are
those of searchtools.js, which Sphinx puts into the site; objects of the API are left out.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sphinx.search.en import SearchEnglish

TITLE, PART_OF_A_TITLE, TERM, PART_OF_A_TERM = 15, 7, 5, 2


def hits(index: dict, query: str) -> list[str]:
    """The pages that a query finds, as names of files without suffix; the best is first."""
    found = [*{*_by_titles(index, query), *_by_terms(index, query)}]
    found.sort(key=lambda hit: (-hit[0], hit[1].lower()))
    return [page for _, _, page in found]


def _by_titles(index: dict, query: str) -> Iterator[tuple[int, str, str]]:
    wanted = query.lower().strip()
    for title, places in index["alltitles"].items():
        if wanted in title.lower() and len(wanted) >= len(title) / 2:
            for file, _ in places:
                page = index["titles"][file]
                shown = title if title == page else f"{page} > {title}"
                score = round(TITLE * len(wanted) / len(title)) + (title == page)
                yield score, shown, index["docnames"][file]


def _by_terms(index: dict, query: str) -> Iterator[tuple[int, str, str]]:
    language = SearchEnglish({})
    words = {
        language.stem(word)
        for word in re.findall(r"\w+", query.lower())
        if word not in language.stopwords and not word.isdigit()
    }
    scores: dict[int, dict[str, int]] = {}
    for word in words:
        for terms, whole, part in (
            (index["terms"], TERM, PART_OF_A_TERM),
            (index["titleterms"], TITLE, PART_OF_A_TITLE),
        ):
            found = {word: whole} if word in terms else {}
            if not found and len(word) > 2:
                found = {term: part for term in terms if word in term}
            for term, score in found.items():
                files = terms[term]
                for file in files if isinstance(files, list) else [files]:
                    scores.setdefault(file, {})[word] = score
    needed = {word for word in words if len(word) > 2}
    for file, score in scores.items():
        if needed <= {*score}:
            yield max(score.values()), index["titles"][file], index["docnames"][file]


def main() -> None:
    """Write the pages that each query finds, as a JSON object."""
    text = Path(sys.argv[1]).read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    json.dump({query: hits(index, query) for query in sys.argv[2:]}, sys.stdout)


if __name__ == "__main__":
    main()
