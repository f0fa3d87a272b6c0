//! Storefront events: record n is a function of (seed, n) alone.
//!
//! Used by the demo, the benches and the kill tests, so that a verifier can say of any n what must have landed
//! without keeping anything. About 250 B a record: orders, payments and refunds with nested customers and items.
//! Every 1,000th is broken, by turns: cut JSON, text for `amount`, no `order_id`.

use std::fmt::Write as _;

/// What is wrong with a record on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The JSON text ends in the middle.
    CutJson,
    /// `amount` is a text.
    TextAmount,
    /// `order_id`, declared NOT NULL, is not there.
    NoOrderId,
}

/// One record in every this many is broken.
pub const BROKEN_EVERY: u64 = 1_000;

/// The fault of record `n`, if it is one of the broken ones.
pub fn fault(n: u64) -> Option<Fault> {
    if n % BROKEN_EVERY != BROKEN_EVERY - 1 {
        return None;
    }
    Some(match (n / BROKEN_EVERY) % 3 {
        0 => Fault::CutJson,
        1 => Fault::TextAmount,
        _ => Fault::NoOrderId,
    })
}

const COUNTRIES: [&str; 12] = ["DE", "FR", "GB", "JP", "US", "BR", "IN", "ES", "PL", "SE", "KR", "ZA"];
const CURRENCIES: [&str; 4] = ["EUR", "USD", "GBP", "JPY"];
const SKUS: [&str; 8] =
    ["tea-green", "tea-black", "mug-blue", "mug-größe-l", "kettle-1l", "café-500g", "filter-100", "抹茶-30g"];
const TYPES: [&str; 3] = ["order_placed", "payment_captured", "refund_issued"];

/// 2026-01-01T00:00:00Z, in milliseconds since 1970: where the events' time begins.
const EPOCH_MS: i64 = 1_767_225_600_000;

/// A stateless generator of well-mixed bits: the finaliser of splitmix64 over seed, record and draw.
struct Draws {
    base: u64,
    drawn: u64,
}

impl Draws {
    fn new(seed: u64, n: u64) -> Self {
        Draws { base: mix(seed ^ 0x6c61_6e64_6661_6c6c) ^ mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)), drawn: 0 }
    }

    fn next(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.base.wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift keeps the small bounds here free of a visible bias.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        let at = self.below(from.len() as u64) as usize;
        from.get(at).copied().unwrap_or_default()
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The facts of record `n` that a reader of the table can check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The record's number.
    pub n: u64,
    /// `type`.
    pub event_type: &'static str,
    /// `order_id`.
    pub order_id: u64,
    /// `customer.id`.
    pub customer_id: u64,
    /// `customer.country`.
    pub country: &'static str,
    /// `amount` in hundredths.
    pub amount_cents: u64,
    /// `currency`.
    pub currency: &'static str,
    /// `placed_at` in milliseconds since 1970.
    pub placed_at_ms: i64,
    items: Vec<(&'static str, u64, u64)>,
}

/// The facts of record `n` under `seed`, broken or not.
pub fn facts(seed: u64, n: u64) -> Facts {
    let mut draws = Draws::new(seed, n);
    let event_type = match draws.below(10) {
        0..=5 => TYPES[0],
        6..=8 => TYPES[1],
        _ => TYPES[2],
    };
    let items: Vec<_> =
        (0..1 + draws.below(2)).map(|_| (draws.pick(&SKUS), 1 + draws.below(5), 100 + draws.below(9_900))).collect();
    Facts {
        n,
        event_type,
        order_id: 1_000_000 + n / 2,
        customer_id: 1 + draws.below(50_000),
        country: draws.pick(&COUNTRIES),
        amount_cents: items.iter().map(|(_, quantity, cents)| quantity * cents).sum(),
        currency: draws.pick(&CURRENCIES),
        placed_at_ms: EPOCH_MS
            + i64::try_from(n).unwrap_or(0).saturating_mul(37) % 31_536_000_000
            + draws.below(30) as i64,
        items,
    }
}

/// Writes record `n` as it is published, broken ones included, into `out`, which is cleared first.
pub fn write_record(seed: u64, n: u64, out: &mut String) {
    let facts = facts(seed, n);
    let fault = fault(n);
    out.clear();
    let _ = write!(out, r#"{{"event_id":"{n}","type":"{}""#, facts.event_type);
    if fault != Some(Fault::NoOrderId) {
        let _ = write!(out, r#","order_id":{}"#, facts.order_id);
    }
    let _ = write!(out, r#","customer":{{"id":{},"country":"{}"}}"#, facts.customer_id, facts.country);
    let (whole, cents) = (facts.amount_cents / 100, facts.amount_cents % 100);
    match fault {
        Some(Fault::TextAmount) => {
            let _ = write!(out, r#","amount":"about {whole}""#);
        }
        _ => {
            let _ = write!(out, r#","amount":{whole}.{cents:02}"#);
        }
    }
    let _ = write!(out, r#","currency":"{}","items":["#, facts.currency);
    for (at, (sku, quantity, cents)) in facts.items.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ =
            write!(out, r#"{comma}{{"sku":"{sku}","quantity":{quantity},"price":{}.{:02}}}"#, cents / 100, cents % 100);
    }
    let _ = write!(out, r#"],"placed_at":""#);
    write_time(facts.placed_at_ms, out);
    out.push_str("\"}");
    if fault == Some(Fault::CutJson) {
        let keep = (0..=out.len() * 2 / 3).rev().find(|at| out.is_char_boundary(*at)).unwrap_or(0);
        out.truncate(keep);
    }
}

/// RFC 3339 in UTC with milliseconds, by the civil-from-days arithmetic of the proleptic Gregorian calendar;
/// a library call per record would cost more than the rest of the record.
fn write_time(ms: i64, out: &mut String) {
    let (days, in_day) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let _ = write!(
        out,
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        in_day / 3_600_000,
        in_day / 60_000 % 60,
        in_day / 1_000 % 60,
        in_day % 1_000
    );
}

/// The number of the record that a broken payload was, read from its `event_id` without parsing the rest.
pub fn number_of(payload: &[u8]) -> Option<u64> {
    let rest = payload.strip_prefix(br#"{"event_id":""#)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u64) -> String {
        let mut out = String::new();
        write_record(7, n, &mut out);
        out
    }

    /// Would catch a generator that depends on what was generated before: a re-run could not be verified.
    #[test]
    fn a_record_is_a_function_of_seed_and_number_alone() {
        let (forward, backward): (Vec<_>, Vec<_>) =
            ((0..3_000).map(record).collect(), (0..3_000).rev().map(record).collect());
        assert!(forward.iter().eq(backward.iter().rev()));
        let mut other = String::new();
        write_record(8, 5, &mut other);
        assert_ne!(other, forward[5]);
    }

    /// Would catch a record that is broken though it should not be, or whole though it should be broken.
    #[test]
    fn exactly_the_faulty_records_are_broken_and_each_in_its_way() {
        let mut seen = Vec::new();
        for n in 0..6_000 {
            let text = record(n);
            let parsed = serde_json::from_str::<serde_json::Value>(&text);
            match fault(n) {
                None => {
                    let value = parsed.unwrap_or_else(|error| panic!("{n}: {error}"));
                    assert_eq!(value["event_id"], n.to_string());
                    assert!(value["order_id"].is_u64() && value["amount"].is_f64());
                    let placed: jiff::Timestamp =
                        value["placed_at"].as_str().expect("a text").parse().expect("RFC 3339");
                    assert_eq!(placed.as_millisecond(), facts(7, n).placed_at_ms);
                }
                Some(fault) => {
                    seen.push(fault);
                    assert_eq!(number_of(text.as_bytes()), Some(n));
                    match fault {
                        Fault::CutJson => assert!(parsed.is_err()),
                        Fault::TextAmount => assert!(parsed.expect("JSON")["amount"].is_string()),
                        Fault::NoOrderId => assert!(parsed.expect("JSON").get("order_id").is_none()),
                    }
                }
            }
        }
        use Fault::{CutJson, NoOrderId, TextAmount};
        assert_eq!(seen, [CutJson, TextAmount, NoOrderId, CutJson, TextAmount, NoOrderId]);
    }

    /// Would catch records that grow or shrink away from the size that benches state.
    #[test]
    fn records_have_about_250_bytes() {
        let total: usize = (0..1_000).map(|n| record(n).len()).sum();
        assert!((220_000..290_000).contains(&total), "{total}");
    }
}
