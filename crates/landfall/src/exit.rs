//! Exit codes: what a script may rely on (E75 and the command table).

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything asked for was done.
    Ok,
    /// It was not; stderr says why.
    Failed,
    /// `check`: errors. `publish`: some outcomes are unresolved.
    Second,
    /// The drain deadline passed; the unfinished ranges are named.
    Unfinished,
    /// Ended by a second signal: 128 + its number.
    Signalled(u8),
}

impl Exit {
    /// The number that the process ends with.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::Second => 2,
            Exit::Unfinished => 3,
            Exit::Signalled(signal) => 128u8.saturating_add(signal),
        }
    }
}
