"""Downloads real map data from an Overpass server; only `fedpohcs osm fetch` does this."""

import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from fedpohcs.core.errors import UserError, require
from fedpohcs.core.version import __version__
from fedpohcs.worlds.hongkong.areas import Box

ENDPOINT = "https://overpass-api.de/api/interpreter"
LARGEST_BOX = 25.0  # square kilometres
BUSY = (429, 504)
TIMEOUT = 180.0  # seconds
WAITS = (10.0, 30.0, 60.0)  # seconds before each further try when the server is busy
ROADS = "motorway|trunk|primary|secondary|tertiary|unclassified|residential"
ATTRIBUTION = """Map data (c) OpenStreetMap contributors, available under the Open Database Licence 1.0:
https://www.openstreetmap.org/copyright
A network built from it is a derived database: keep this notice, and share it under the same licence.
"""


def parse_box(text: str) -> Box:
    """The box of a text "S,W,N,E"."""
    try:
        box = Box(*map(float, text.split(",")))
    except (ValueError, TypeError):
        raise UserError(f"bbox (={text!r}) must be four numbers: south,west,north,east.") from None
    sound = -90 <= box.south < box.north <= 90 and -180 <= box.west < box.east <= 180
    require(sound, "bbox", text, "must be south,west,north,east in degrees", "South before north, west before east.")
    size = box.square_kilometres
    require(size <= LARGEST_BOX, "bbox", text, f"covers {size:.0f} km2, more than {LARGEST_BOX:.0f}", "Take less.")
    return box


def overpass_query(box: Box) -> str:
    """All roads for cars in the box, their points, and turn restrictions."""
    where = ",".join(f"{degrees:.7g}" for degrees in box)
    ways = f'way["highway"~"^({ROADS})(_link)?$"]({where});'
    return f'[out:xml][timeout:120];({ways}relation["type"="restriction"]({where}););(._;>;);out body;'


def fetch_osm(box: Box, target: Path, endpoint: str = ENDPOINT, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Download the roads of a box into a file, and put the attribution beside it.

    Args:
        box: the area.
        target: file to write; nothing is written if the server does not send map data.
        endpoint: address of an Overpass interpreter.
        sleep: called to wait while the server is busy.
    """
    answer = _ask(endpoint, overpass_query(box), sleep)
    if b"<osm" not in answer[:2000] or b"<way" not in answer:
        raise UserError(f"endpoint (={endpoint!r}) sent no roads for this box. Take another box or endpoint.")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(answer)
    target.with_name(f"{target.name}.attribution.txt").write_text(ATTRIBUTION, encoding="utf-8")


def _ask(endpoint: str, query: str, sleep: Callable[[float], None]) -> bytes:
    body = urllib.parse.urlencode({"data": query}).encode()
    agent = {"User-Agent": f"fedpohcs/{__version__}"}
    waits = list(WAITS)
    while True:
        try:
            request = urllib.request.Request(endpoint, body, agent)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if error.code in BUSY and waits:
                sleep(waits.pop(0))
                continue
            reason = f"answered {error.code} {error.reason}"
        except (OSError, ValueError) as error:
            reason = f"cannot be reached: {error}"
        raise UserError(f"endpoint (={endpoint!r}) {reason}. Try again later, or name another with --endpoint.")
