//! `landfall explain`: what a code means and what to do, from the pages that each crate keeps.

use landfall_types::CodePage;

use crate::cli::ExplainArgs;
use crate::exit::Exit;
use crate::stdout;

/// Every page of this build, by code.
pub(crate) fn pages() -> Vec<&'static CodePage> {
    let mut pages: Vec<&'static CodePage> = crate::assembly::code_pages().into_iter().flatten().collect();
    pages.sort_by_key(|page| page.code);
    pages
}

/// Prints one page, or the list of all.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<Exit> {
    let pages = pages();
    let Some(wanted) = &args.code else {
        if args.json {
            stdout::line(serde_json::to_string(&pages)?)?;
        } else {
            for page in pages {
                stdout::line(format!("{}  {}", page.code, page.name))?;
            }
        }
        return Ok(Exit::Ok);
    };
    let name = wanted.trim().to_ascii_uppercase();
    let full = if name.starts_with("LF-") { name } else { format!("LF-{name}") };
    let Some(page) = pages.iter().find(|page| page.code.to_string() == full) else {
        let near = pages.iter().map(|page| page.code.to_string()).min_by_key(|code| strsim::levenshtein(code, &full));
        eprintln!("there is no code `{wanted}`; the nearest is {}", near.unwrap_or_default());
        return Ok(Exit::Failed);
    };
    if args.json {
        stdout::line(serde_json::to_string(page)?)?;
        return Ok(Exit::Ok);
    }
    let kind = serde_json::to_value(page.kind)?;
    let retry = serde_json::to_value(page.retry)?;
    stdout::line(format!("{} {}", page.code, page.name))?;
    stdout::line(format!("  kind: {}   retry: {}\n", kind.as_str().unwrap_or(""), retry.as_str().unwrap_or("")))?;
    stdout::line(format!("{}\n\n{}", page.meaning, page.help))?;
    Ok(Exit::Ok)
}
