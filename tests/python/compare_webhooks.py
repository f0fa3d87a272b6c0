"""Compares every value of the landed webhooks table with the file it came from.

    compare_webhooks.py TABLE FILE

The expectation is computed here, from the file, with Python's own JSON reader: nothing is shared with what landed it.
Exit 0 only if each line has its row, each row its line, and each of the columns its value and type.
"""

import datetime
import decimal
import json
import sys

import pyarrow as pa
import script
from deltalake import DeltaTable


def at(value, *path):
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def first(*values):
    return next((value for value in values if value is not None), None)


def moment(text):
    if text is None:
        return None
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(datetime.timezone.utc)


def expected(line, event):
    payload = event["payload"]
    repository = payload.get("repository")
    kinds = ("pull_request", "issue", "discussion")
    size = at(repository, "size")
    additions = at(payload, "pull_request", "additions")
    labels = at(payload, "issue", "labels")
    return {
        "line": line,
        "event": event["event"],
        "action": event["action"],
        "sender": at(payload, "sender", "login"),
        "sender_id": at(payload, "sender", "id"),
        "sender_is_admin": at(payload, "sender", "site_admin"),
        "repository_id": at(repository, "id"),
        "repository": at(repository, "full_name"),
        "is_private": at(repository, "private"),
        "repository_size": None if size is None else decimal.Decimal(size).quantize(decimal.Decimal("0.01")),
        "topics": at(repository, "topics"),
        "custom_properties": at(repository, "custom_properties"),
        "organization": at(payload, "organization", "login"),
        "installation_id": at(payload, "installation", "id"),
        "number": first(*(at(payload, kind, "number") for kind in kinds)),
        "title": first(*(at(payload, kind, "title") for kind in kinds)),
        "body": first(at(payload, "comment", "body"), *(at(payload, kind, "body") for kind in kinds)),
        "labels": None
        if labels is None
        else [{"id": at(label, "id"), "name": at(label, "name"), "default": at(label, "default")} for label in labels],
        "happened_at": moment(
            first(at(payload, "comment", "created_at"), *(at(payload, kind, "created_at") for kind in kinds))
        ),
        "is_large": additions is not None and additions > 100,
    }


TYPES = {
    "line": pa.int64(),
    "event": pa.string(),
    "action": pa.string(),
    "sender": pa.string(),
    "sender_id": pa.int64(),
    "sender_is_admin": pa.bool_(),
    "repository_id": pa.int64(),
    "repository": pa.string(),
    "is_private": pa.bool_(),
    "repository_size": pa.decimal128(12, 2),
    "custom_properties": pa.string(),
    "organization": pa.string(),
    "installation_id": pa.int64(),
    "number": pa.int32(),
    "title": pa.string(),
    "body": pa.string(),
    "happened_at": pa.timestamp("us", tz="UTC"),
    "is_large": pa.bool_(),
}


def main():
    table, file = sys.argv[1:3]
    landed = DeltaTable(table).to_pyarrow_table()
    problems = [
        f"column {name}: type {landed.schema.field(name).type}, expected {wanted}"
        for name, wanted in TYPES.items()
        if landed.schema.field(name).type != wanted
    ]
    rows = {row["line"]: row for row in landed.to_pylist()}
    with open(file, encoding="utf-8", newline="\n") as lines:
        events = [json.loads(line) for line in lines]
    if len(rows) != landed.num_rows:
        problems.append(f"{landed.num_rows} rows, {len(rows)} distinct lines")
    if set(rows) != set(range(len(events))):
        problems.append(f"lines without a row: {sorted(set(range(len(events))) - set(rows))[:10]}")
    compared = 0
    for line, event in enumerate(events):
        row = rows.get(line)
        if row is None:
            continue
        wanted = expected(line, event)
        if set(row) != set(wanted):
            problems.append(f"columns {sorted(row)}, expected {sorted(wanted)}")
            break
        for name, value in wanted.items():
            found = row[name]
            if name == "custom_properties" and found is not None:
                found = json.loads(found)
            compared += 1
            if found != value:
                problems.append(f"line {line}, {name}: {found!r:.200}, expected {value!r:.200}")
    for problem in problems[:20]:
        print(problem, file=sys.stderr)
    print(json.dumps({"rows": len(rows), "columns": len(landed.schema), "values": compared, "problems": len(problems)}))
    return 1 if problems else 0


if __name__ == "__main__":
    script.run(main)
