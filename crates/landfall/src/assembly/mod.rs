//! From a configuration to running parts.
use landfall_types::CodePage;
pub(crate) fn code_pages() -> Vec<&'static [CodePage]> {
    vec![crate::config::CODES]
}
