"""Judges Delta tables of change rows with an independent reader: current states, and what must hold of the changes.

    change_table.py (TABLE KEY,KEY... STATE)...

Writes each current state, computed from the rows as docs/current-state.md says, as a JSON object a line. Prints
{"tables": […]}, of each {"rows", "doubles", "holes", "passed", "points", "changes": {xid: {op: number}}}: changes that stand
there twice, rows that lack a part of what makes them a change, streamed changes below the last copy, the points that copied
rows stand at, and the streamed changes of each transaction behind the last copy.
"""

import collections
import json
import sys

import script
from deltalake import DeltaTable

OPS = {"s", "i", "u", "d", "t"}


def place(row):
    return (row["_commit_lsn"], row["_seq"])


def current(rows, keys):
    copied = max((row["_commit_lsn"] for row in rows if row["_op"] == "s"), default=0)
    emptied = max((place(row) for row in rows if row["_op"] == "t"), default=(0, -1))
    newest = {}
    for row in rows:
        if row["_op"] == "t" or row["_commit_lsn"] < copied or place(row) <= emptied:
            continue
        key = tuple(row[name] for name in keys)
        if key not in newest or place(newest[key]) < place(row):
            newest[key] = row
    return [row for row in newest.values() if row["_op"] != "d"]


def is_whole(row, keys):
    if row["_op"] not in OPS or row["_commit_lsn"] is None or row["_seq"] is None:
        return False
    if (row["_op"] == "s") != (row["_xid"] is None) or (row["_op"] == "s") != (row["_seq"] == 0):
        return False
    return row["_op"] == "t" or all(row[name] is not None for name in keys)


def judge(table, keys, out):
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    streamed = collections.Counter(place(row) for row in rows if row["_op"] != "s")
    copied = collections.Counter(
        (row["_commit_lsn"], *(row[name] for name in keys)) for row in rows if row["_op"] == "s"
    )
    # What streamed below the last copy is part of it: a copy that begins anew leaves it there, and it counts no more.
    point = max((row["_commit_lsn"] for row in rows if row["_op"] == "s"), default=0)
    changes = collections.defaultdict(collections.Counter)
    for row in rows:
        if row["_op"] != "s" and row["_commit_lsn"] >= point:
            changes[str(row["_xid"])][row["_op"]] += 1
    with open(out, "w", encoding="utf-8") as lines:
        for row in current(rows, keys):
            own = {name: value for name, value in row.items() if not name.startswith("_") and value is not None}
            lines.write(json.dumps(own) + "\n")
    return {
        "rows": len(rows),
        "doubles": sum(number - 1 for counts in (streamed, copied) for number in counts.values()),
        "holes": sum(not is_whole(row, keys) for row in rows),
        "passed": sum(row["_op"] != "s" and row["_commit_lsn"] < point for row in rows),
        "points": sorted({row["_commit_lsn"] for row in rows if row["_op"] == "s"}),
        "changes": changes,
    }


def main():
    triples = zip(*[iter(sys.argv[1:])] * 3)
    print(json.dumps({"tables": [judge(table, keys.split(","), out) for table, keys, out in triples]}))


if __name__ == "__main__":
    script.run(main)
