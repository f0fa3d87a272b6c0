//! Patterns over whole names: `*` is any run of characters, `?` is one.

/// Whether `name` matches `pattern` from end to end. Takes time of at most the product of both lengths.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The last star, and how much of the name it has taken: the only place to go back to.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || name.get(n) == Some(c) => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    /// Would catch a pattern that matches a part of a name only, or a star that does not go back.
    #[test]
    fn patterns_cover_the_whole_name() {
        for (pattern, name) in
            [("*", ""), ("a*c", "abbc"), ("a*c", "ac"), ("?b*", "abx"), ("*ab", "aab"), ("main.*.x?", "main.y.z.x1")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("a", "ab"), ("a*c", "acb"), ("?", ""), ("A", "a"), ("main.*", "main")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(!matches(&"*a".repeat(30), &"a".repeat(200).replace("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "b")));
    }
}
