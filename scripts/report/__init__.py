"""One HTML file that presents runs: `python -m scripts.report RUN_DIR [RUN_DIR ...]`.

`runs` reads the directories. `scales` and `chart` draw. `panels`, `headline`, `settings` and `samples` choose what is
shown. `page` assembles it from page.html, page.css and page.js.
"""
