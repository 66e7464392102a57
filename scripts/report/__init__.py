"""One HTML file about runs: `numbers` and `rollouts` read them, Bokeh draws `charts`, page.html is the page."""
