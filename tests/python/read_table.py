"""Reads a Delta table with an independent reader and writes one column's values, a line each, sorted as text.

    read_table.py TABLE COLUMN OUT

Prints {"rows", "distinct", "version"}.
"""

import json
import sys

import script
from deltalake import DeltaTable


def main():
    table, column, out = sys.argv[1:4]
    delta = DeltaTable(table)
    values = delta.to_pyarrow_table(columns=[column]).column(column).to_pylist()
    with open(out, "w", encoding="utf-8") as lines:
        lines.writelines(f"{value}\n" for value in sorted(str(value) for value in values))
    print(json.dumps({"rows": len(values), "distinct": len(set(values)), "version": delta.version()}))


if __name__ == "__main__":
    script.run(main)
