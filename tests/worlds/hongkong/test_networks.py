import gzip
import json
import os
from pathlib import Path

import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.worlds.hongkong import building
from fedpohcs.worlds.hongkong.areas import AREAS, Limits, synthetic_osm
from fedpohcs.worlds.hongkong.building import LONGEST_LOOP, SHORTEST_LOOP, build_area, build_network
from fedpohcs.worlds.hongkong.networks import DATA, load_network

ROOT = Path(__file__).parents[3]
EXTRACTS = Path(os.environ.get("FEDPOHCS_OSM_EXTRACTS", ROOT.parent / "shared" / "osm"))


def extract(name: str) -> Path:
    path = EXTRACTS / name
    if not path.is_file():
        pytest.skip(f"needs {name} in the folder that FEDPOHCS_OSM_EXTRACTS names")
    return path


@pytest.fixture
def netconvert() -> None:
    try:
        building.find_netconvert()
    except UserError:
        pytest.skip("needs the extra sumo-build")


@pytest.mark.parametrize("name", AREAS)
def test_the_loop_of_an_area_is_closed_and_visits_no_road_twice(name: str) -> None:
    network = load_network(name)
    edges = [road.edge for road in network.loop]
    assert len(set(edges)) == len(edges)
    assert SHORTEST_LOOP <= sum(road.length for road in network.loop) <= LONGEST_LOOP
    assert {position for position, _, _ in network.junction_lanes.values()} == set(range(len(edges)))
    assert network.ring == pytest.approx(sum(road.length + road.junction for road in network.loop))


def test_areas_differ_in_lanes_target_speed_and_acceleration() -> None:
    networks = [load_network(name) for name in AREAS]
    assert len({round(network.mean_lanes, 1) for network in networks}) >= 5
    assert len({round(network.target_speed, 1) for network in networks}) >= 5
    assert len({network.limits for network in networks}) >= 8


def test_a_place_on_a_junction_lies_behind_its_road_and_before_the_next() -> None:
    network = load_network("central")
    for place in network.places.values():
        if place.on_junction:
            end = network.starts[place.position] + network.loop[place.position].length
            assert end <= place.start <= network.starts[place.position + 1]


def test_the_generator_writes_the_same_map_every_time() -> None:
    assert synthetic_osm("po-lam") == synthetic_osm("po-lam")
    assert synthetic_osm("po-lam") != synthetic_osm("kai-tak")


@pytest.mark.parametrize("name", AREAS)
def test_building_an_area_anew_gives_the_files_of_the_package(name: str, tmp_path: Path, netconvert: None) -> None:
    built, shipped = build_area(name, tmp_path), load_network(name)
    if built.netconvert != shipped.netconvert:
        pytest.skip(f"the package's networks are made by netconvert {shipped.netconvert}")
    assert (tmp_path / f"{name}.json").read_bytes() == (DATA / f"{name}.json").read_bytes()
    assert gzip.decompress(built.path.read_bytes()) == gzip.decompress(shipped.path.read_bytes())


def test_a_real_extract_becomes_a_network_that_reads_back_as_it_was_built(tmp_path: Path, netconvert: None) -> None:
    built = build_network(extract("tsim_sha_tsui_2015.roads.osm"), "tsim-sha-tsui", tmp_path)
    assert built == load_network("tsim-sha-tsui", tmp_path)
    assert built.num_edges > 100
    assert built.limits == Limits()


def test_an_extract_without_a_loop_is_refused_and_nothing_is_written(tmp_path: Path, netconvert: None) -> None:
    with pytest.raises(UserError, match=r"holds no closed loop of 700-1600 m .* Take a larger box\."):
        build_network(extract("yau_ma_tei_2025.roads.osm"), "yau-ma-tei", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_own_network_replaces_the_area_of_its_name_and_keeps_its_limits(tmp_path: Path, netconvert: None) -> None:
    osm = tmp_path / "map.osm"
    osm.write_bytes(synthetic_osm("po-lam"))
    build_network(osm, "central", tmp_path)
    assert load_network("central", tmp_path).source == "map.osm"
    assert load_network("central", tmp_path).limits == AREAS["central"].limits
    assert load_network("kai-tak", tmp_path) == load_network("kai-tak")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "invalid document structure"),
        ("these are not roads", "invalid document structure"),
        ('<osm version="0.6"></osm>', "No nodes loaded"),
        ('<osm version="0.6"><node id="1" lat="22.3" lon="114.1"/></osm>', "no|No"),
    ],
)
def test_a_file_without_roads_is_refused_with_the_reason(
    content: str, reason: str, tmp_path: Path, netconvert: None
) -> None:
    osm = tmp_path / "map.osm"
    osm.write_text(content)
    with pytest.raises(UserError, match=rf"map\.osm'\) .*({reason})"):
        build_network(osm, "area", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_file_and_a_bad_name_are_refused(tmp_path: Path, netconvert: None) -> None:
    with pytest.raises(UserError, match="is not a file"):
        build_network(tmp_path / "nothing.osm", "area", tmp_path)
    with pytest.raises(UserError, match=r"name \(='../x'\) must be"):
        build_network(tmp_path / "nothing.osm", "../x", tmp_path)


def test_without_netconvert_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SUMO_HOME", raising=False)
    with pytest.raises(UserError, match=r"pip install 'fedpohcs\[sumo-build\]'"):
        build_network(tmp_path / "map.osm", "area", tmp_path)


def test_an_unknown_or_damaged_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'central'"):
        load_network("centrl")
    with pytest.raises(UserError, match="must be a folder made by `fedpohcs osm build`"):
        load_network("central", tmp_path / "nothing")
    (tmp_path / "central.json").write_text(json.dumps({"name": "central"}))
    with pytest.raises(UserError, match=r"central\.json'\) cannot be read.* Build it again"):
        load_network("central", tmp_path)
