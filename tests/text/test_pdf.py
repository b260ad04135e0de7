"""The text of a PDF is read up to limits of pages and characters; files that need a password are refused."""

import io

import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.text.pdf import pages_of
from tests.pdf_files import pdf

pypdf = pytest.importorskip("pypdf", reason="the extra `pdf` is not installed")
FILE = pdf("The sea.", "A fox.", "Rain.")


@pytest.mark.parametrize(
    ("limits", "pages"),
    [
        ((), ["The sea.", "A fox.", "Rain."]),
        ((2,), ["The sea.", "A fox."]),
        ((None, 100), ["The sea.", "A fox.", "Rain."]),
        ((None, 10), ["The sea.", "A "]),
        ((3, 8), ["The sea."]),
        ((1, 3), ["The"]),
    ],
)
def test_pages_are_read_up_to_the_limits(limits, pages):
    document = pages_of(FILE, "sea.pdf", *limits)
    assert (document.pages, document.total) == (pages, 3)


@pytest.mark.parametrize("password", ["", "secret"])
def test_an_encrypted_file_is_read_only_if_it_needs_no_password(password):
    writer, target = pypdf.PdfWriter(io.BytesIO(FILE)), io.BytesIO()
    writer.encrypt(password, "owner", algorithm="RC4-128")
    writer.write(target)
    if password:
        with pytest.raises(BadInput, match=r"sea\.pdf needs a password"):
            pages_of(target.getvalue(), "sea.pdf")
    else:
        assert pages_of(target.getvalue(), "sea.pdf").pages == ["The sea.", "A fox.", "Rain."]


@pytest.mark.parametrize("content", [b"", b"%PDF-", FILE[:200]])
def test_a_damaged_file_is_refused_in_one_line(content):
    with pytest.raises(BadInput, match=r"^sea\.pdf: cannot be read as PDF: [^\n]+$"):
        pages_of(content, "sea.pdf")
