"""Read an HTML page for the tests, and check that every tag is closed in order."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input"}


class PageReader(HTMLParser):
    """Collects the tags, attributes, ids and texts that the tests check."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.images, self.attrs = [], [], [], [], []
        self.texts = {}

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.attrs.append((tag, attrs))
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "img":
            self.images.append(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def read_page(html):
    """Return a reader that has read the whole page."""
    reader = PageReader()
    reader.feed(html)
    reader.close()
    return reader
