"""One HTML file that shows runs to a person: `python -m scripts.report RUN_DIR [RUN_DIR ...]`.

`runs` reads the directories, `scales` and `chart` draw, `panels`, `headline`, `settings` and `samples` choose what is
shown, and `page` puts it together from page.html, page.css and page.js.
"""
