//! The type catalog: from an oid and a modifier to what values are (P75, P81).
//!
//! Domains are followed to their base and arrays to their element; what is not known by its oid or name is carried as
//! its text. Only the types that tables use are read, with those they are made of.

use std::collections::HashMap;
use std::sync::Arc;

use crate::PgType;
use crate::sql::{SqlConnection, SqlError};

/// How deep a chain of domains and arrays is followed; deeper ones are carried as text.
const DEPTH_MAX: u32 = 16;

/// One row of `pg_type`, as far as values depend on it.
#[derive(Clone, Debug)]
pub(super) struct TypeRow {
    pub(super) oid: u32,
    pub(super) schema: String,
    pub(super) name: String,
    /// `b` base, `d` domain, `e` enum, `c` composite, `r` range, `m` multirange.
    pub(super) kind: i8,
    pub(super) base: u32,
    pub(super) base_modifier: i32,
    pub(super) element: u32,
    pub(super) is_array: bool,
    pub(super) delimiter: i8,
}

/// The types that were read.
#[derive(Clone, Debug, Default)]
pub(super) struct TypeCatalog {
    rows: HashMap<u32, TypeRow>,
}

const READ: &str = "
    WITH RECURSIVE needed(oid) AS (
      SELECT unnest($1::pg_catalog.oid[])
      UNION
      SELECT part.oid
      FROM needed JOIN pg_catalog.pg_type t ON t.oid = needed.oid
      CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem)) AS part(oid)
      WHERE part.oid <> 0)
    SELECT t.oid, n.nspname::text, t.typname::text, t.typtype, t.typbasetype, t.typtypmod, t.typelem,
           coalesce(e.typarray = t.oid, false), coalesce(e.typdelim, t.typdelim)
    FROM needed
    JOIN pg_catalog.pg_type t ON t.oid = needed.oid
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem";

impl TypeCatalog {
    /// Reads these types and those they are made of.
    pub(super) async fn read(sql: &SqlConnection, oids: &[u32]) -> Result<Self, SqlError> {
        let doing = "read the types";
        let mut rows = HashMap::new();
        for row in sql.rows(doing, READ, &[&oids]).await? {
            let read = || -> Result<TypeRow, tokio_postgres::Error> {
                Ok(TypeRow {
                    oid: row.try_get(0)?,
                    schema: row.try_get(1)?,
                    name: row.try_get(2)?,
                    kind: row.try_get(3)?,
                    base: row.try_get(4)?,
                    base_modifier: row.try_get(5)?,
                    element: row.try_get(6)?,
                    is_array: row.try_get(7)?,
                    delimiter: row.try_get(8)?,
                })
            };
            let read = read().map_err(|cause| sql.failed(doing, cause))?;
            rows.insert(read.oid, read);
        }
        Ok(TypeCatalog { rows })
    }

    #[cfg(test)]
    pub(super) fn of(rows: impl IntoIterator<Item = TypeRow>) -> Self {
        TypeCatalog { rows: rows.into_iter().map(|row| (row.oid, row)).collect() }
    }

    /// What values of a column of this type are.
    pub(super) fn resolve(&self, oid: u32, modifier: i32) -> PgType {
        self.resolve_within(oid, modifier, DEPTH_MAX)
    }

    fn resolve_within(&self, oid: u32, modifier: i32, depth: u32) -> PgType {
        if let Some(known) = built_in(oid, modifier) {
            return known;
        }
        let Some(row) = self.rows.get(&oid) else { return PgType::Other(format!("type {oid}").into()) };
        let Some(depth) = depth.checked_sub(1) else { return PgType::Other(row.full_name()) };
        match (row.kind as u8, row.name.as_str()) {
            // A column of a domain has no modifier of its own; the domain's is its base's.
            (b'd', _) => self.resolve_within(row.base, row.base_modifier, depth),
            (b'e', _) => PgType::Enum,
            (b'b', _) if row.is_array => PgType::Array {
                element: Box::new(self.resolve_within(row.element, modifier, depth)),
                delimiter: char::from(row.delimiter as u8),
            },
            // Extension types, whose oid differs from database to database.
            (b'b', "citext" | "ltree") => PgType::Text,
            _ => PgType::Other(row.full_name()),
        }
    }
}

/// What values of these types are, by the catalog as it is now: (oid, modifier, kind) for each (oid, modifier).
pub(crate) async fn resolve_types(
    sql: &SqlConnection,
    types: &[(u32, i32)],
) -> Result<Vec<(u32, i32, PgType)>, SqlError> {
    let oids: Vec<u32> = types.iter().map(|(oid, _)| *oid).collect();
    let catalog = TypeCatalog::read(sql, &oids).await?;
    Ok(types.iter().map(|(oid, modifier)| (*oid, *modifier, catalog.resolve(*oid, *modifier))).collect())
}

impl TypeRow {
    fn full_name(&self) -> Arc<str> {
        if self.schema == "pg_catalog" {
            self.name.as_str().into()
        } else {
            format!("{}.{}", self.schema, self.name).into()
        }
    }
}

/// Types whose oid is the same on every server.
fn built_in(oid: u32, modifier: i32) -> Option<PgType> {
    Some(match oid {
        16 => PgType::Bool,
        17 => PgType::Bytea,
        18 | 1042 => PgType::Char,
        19 | 25 | 142 | 1043 | 3614 => PgType::Text,
        20 => PgType::Int8,
        21 => PgType::Int2,
        23 => PgType::Int4,
        26 | 28 | 29 => PgType::Oid,
        114 => PgType::Json,
        700 => PgType::Float4,
        701 => PgType::Float8,
        790 => PgType::Money,
        1082 => PgType::Date,
        1083 => PgType::Time,
        1114 => PgType::Timestamp,
        1184 => PgType::TimestampTz,
        1186 => PgType::Interval,
        1266 => PgType::TimeTz,
        1700 => PgType::Numeric(numeric_modifier(modifier)),
        2950 => PgType::Uuid,
        3802 => PgType::Jsonb,
        5069 => PgType::Xid8,
        _ => return None,
    })
}

/// Precision and scale of `numeric(p, s)`: the scale is 11 bits with sign since version 15, and was never above 1,000.
fn numeric_modifier(modifier: i32) -> Option<(u16, i16)> {
    let bits = modifier.checked_sub(4).filter(|bits| *bits >= 0)?;
    let precision = u16::try_from(bits >> 16).ok()?;
    let scale = ((bits & 0x7ff) ^ 0x400) - 0x400;
    Some((precision, i16::try_from(scale).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(oid: u32, name: &str, kind: u8) -> TypeRow {
        TypeRow {
            oid,
            schema: "public".to_owned(),
            name: name.to_owned(),
            kind: kind as i8,
            base: 0,
            base_modifier: -1,
            element: 0,
            is_array: false,
            delimiter: b',' as i8,
        }
    }

    /// Catches a domain that is taken for its own type, or that loses its base's modifier.
    #[test]
    fn a_domain_is_its_base_however_long_the_chain() {
        let modifier = (12 << 16 | 2) + 4;
        let catalog = TypeCatalog::of([
            TypeRow { base: 1700, base_modifier: modifier, ..row(100, "amount", b'd') },
            TypeRow { base: 100, ..row(101, "price", b'd') },
            row(102, "mood", b'e'),
            TypeRow { base: 102, ..row(103, "good_mood", b'd') },
            TypeRow { element: 101, is_array: true, ..row(104, "_price", b'b') },
            TypeRow { base: 104, ..row(105, "prices", b'd') },
        ]);
        assert_eq!(catalog.resolve(101, -1), PgType::Numeric(Some((12, 2))));
        assert_eq!(catalog.resolve(100, -1), PgType::Numeric(Some((12, 2))));
        assert_eq!(catalog.resolve(103, -1), PgType::Enum);
        let prices = PgType::Array { element: Box::new(PgType::Numeric(Some((12, 2)))), delimiter: ',' };
        assert_eq!(catalog.resolve(105, -1), prices);
    }

    /// Catches a chain that never ends, which no sane catalog has, and a type nobody told us of.
    #[test]
    fn what_cannot_be_followed_is_text() {
        let catalog = TypeCatalog::of([
            TypeRow { base: 101, ..row(100, "a", b'd') },
            TypeRow { base: 100, ..row(101, "b", b'd') },
            row(102, "point3", b'c'),
            TypeRow { element: 701, ..row(600, "point", b'b') },
        ]);
        assert!(matches!(catalog.resolve(100, -1), PgType::Other(_)));
        assert_eq!(catalog.resolve(102, -1), PgType::Other("public.point3".into()));
        assert_eq!(catalog.resolve(600, -1), PgType::Other("public.point".into()), "an element alone is no array");
        assert_eq!(catalog.resolve(999, -1), PgType::Other("type 999".into()));
    }

    /// Catches scales read as unsigned: numeric(3, -2) and numeric(2, 5) are legal since version 15.
    #[test]
    fn a_scale_may_be_negative_or_above_the_precision() {
        for (precision, scale) in [(10, 2), (1, 0), (1000, 1000), (3, -2), (2, 5), (1000, -1000)] {
            let modifier = ((precision << 16) | (scale & 0x7ff)) + 4;
            assert_eq!(numeric_modifier(modifier), Some((precision as u16, scale as i16)));
        }
        assert_eq!(numeric_modifier(-1), None);
        assert_eq!(numeric_modifier(3), None);
    }
}
