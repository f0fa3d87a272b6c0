//! Dates and times from their ISO texts, by the proleptic Gregorian calendar: years of up to seven digits, BC, zones
//! with seconds, and the two ends of time.

use super::Misfit;

/// Days since 1970 of 4714-11-24 BC, where Postgres' calendar starts.
pub(super) const DATE_MIN: i32 = -2_440_588;
/// Days since 1970 of 5874897-12-31, where its dates end.
pub(super) const DATE_MAX: i32 = 2_145_042_905;
/// µs since 1970 of 4714-11-24 BC.
pub(super) const TIMESTAMP_MIN: i64 = DATE_MIN as i64 * DAY_MICROS;
/// The last microsecond of a day.
pub(super) const TIME_MAX: i64 = DAY_MICROS - 1;

const DAY_MICROS: i64 = 86_400_000_000;

/// Reads a text from its start.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn skip(&mut self, byte: u8) -> Result<(), Misfit> {
        self.0 = self.0.strip_prefix(&[byte]).ok_or(Misfit::Bad)?;
        Ok(())
    }

    /// A run of `least` to `most` digits.
    fn digits(&mut self, least: usize, most: usize) -> Result<i64, Misfit> {
        let count = self.0.iter().take(most).take_while(|byte| byte.is_ascii_digit()).count();
        if count < least {
            return Err(Misfit::Bad);
        }
        let (digits, rest) = self.0.split_at_checked(count).ok_or(Misfit::Bad)?;
        self.0 = rest;
        Ok(digits.iter().fold(0, |value, byte| value * 10 + i64::from(byte - b'0')))
    }

    fn two(&mut self, below: i64) -> Result<i64, Misfit> {
        self.digits(2, 2).and_then(|value| if value < below { Ok(value) } else { Err(Misfit::Bad) })
    }

    /// Year, month and day; the year as written.
    fn date(&mut self) -> Result<(i64, i64, i64), Misfit> {
        let year = self.digits(4, 7)?;
        self.skip(b'-')?;
        let month = self.two(13)?;
        self.skip(b'-')?;
        Ok((year, month, self.two(32)?))
    }

    /// µs since midnight; up to 24:00:00.
    fn time(&mut self) -> Result<i64, Misfit> {
        let hour = self.two(25)?;
        self.skip(b':')?;
        let minute = self.two(60)?;
        self.skip(b':')?;
        let second = self.two(60)?;
        let mut micros = ((hour * 60 + minute) * 60 + second) * 1_000_000;
        if let [b'.', rest @ ..] = self.0 {
            self.0 = rest;
            let before = self.0.len();
            let fraction = self.digits(1, 6)?;
            micros += (before - self.0.len()..6).fold(fraction, |value, _| value * 10);
        }
        if micros > DAY_MICROS { Err(Misfit::Bad) } else { Ok(micros) }
    }

    /// Seconds east of Greenwich: `+hh`, `+hh:mm`, `+hh:mm:ss`.
    fn zone(&mut self) -> Result<i64, Misfit> {
        let is_west = match self.0 {
            [b'+', ..] => false,
            [b'-', ..] => true,
            _ => return Err(Misfit::Bad),
        };
        self.0 = self.0.get(1..).unwrap_or_default();
        // The server takes zones of up to 15:59:59; 24 is merely no nonsense.
        let mut seconds = self.two(24)? * 3_600;
        for unit in [60, 1] {
            if self.0.first() == Some(&b':') {
                self.skip(b':')?;
                seconds += self.two(60)? * unit;
            }
        }
        Ok(if is_west { -seconds } else { seconds })
    }

    fn is_before_christ(&mut self) -> Result<bool, Misfit> {
        match self.0 {
            b"" => Ok(false),
            b" BC" => Ok(true),
            _ => Err(Misfit::Bad),
        }
    }
}

fn infinity(text: &[u8]) -> Result<(), Misfit> {
    match text {
        b"infinity" => Err(Misfit::Infinite { is_negative: false }),
        b"-infinity" => Err(Misfit::Infinite { is_negative: true }),
        _ => Ok(()),
    }
}

/// Days since 1970-01-01 of a day that the calendar has.
fn days((year, month, day): (i64, i64, i64), is_before_christ: bool) -> Result<i64, Misfit> {
    if year == 0 {
        return Err(Misfit::Bad);
    }
    // There is no year 0: 1 BC is astronomers' 0.
    let year = if is_before_christ { 1 - year } else { year };
    let is_leap = year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let last = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return Err(Misfit::Bad),
    };
    if !(1..=last).contains(&day) {
        return Err(Misfit::Bad);
    }
    // Counted from the first of March, so that the leap day is a year's last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * month + 2) / 5 + day - 1;
    const DAYS_OF_ERA: i64 = 146_097;
    const DAYS_TO_1970: i64 = 719_468;
    Ok(era * DAYS_OF_ERA + day_of_era - DAYS_TO_1970)
}

/// Days since 1970-01-01.
pub(super) fn date(text: &[u8]) -> Result<i32, Misfit> {
    infinity(text)?;
    let mut rest = Text(text);
    let date = rest.date()?;
    let days = days(date, rest.is_before_christ()?)?;
    i32::try_from(days).ok().filter(|days| (DATE_MIN..=DATE_MAX).contains(days)).ok_or(Misfit::Bad)
}

/// µs since 1970-01-01 00:00, without a zone or, `with_zone`, in UTC.
pub(super) fn timestamp(text: &[u8], with_zone: bool) -> Result<i64, Misfit> {
    infinity(text)?;
    let mut rest = Text(text);
    let date = rest.date()?;
    rest.skip(b' ')?;
    let time = rest.time()?;
    let zone = if with_zone { rest.zone()? } else { 0 };
    let days = days(date, rest.is_before_christ()?)?;
    // Years have at most seven digits: in i128 nothing overflows, and the type's end is judged once.
    let micros = i128::from(days) * i128::from(DAY_MICROS) + i128::from(time) - i128::from(zone) * 1_000_000;
    i64::try_from(micros).map_err(|_| Misfit::Beyond { is_negative: micros < 0 })
}

/// µs since midnight; 24:00:00 is beyond the last one.
pub(super) fn time(text: &[u8]) -> Result<i64, Misfit> {
    let mut rest = Text(text);
    let micros = rest.time()?;
    match (rest.0, micros) {
        (b"", ..=TIME_MAX) => Ok(micros),
        (b"", _) => Err(Misfit::Beyond { is_negative: false }),
        _ => Err(Misfit::Bad),
    }
}
