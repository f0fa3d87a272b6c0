//! Whether a directory can be used, found out without making it.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FsWord, PROC_SUPER_MAGIC, access, statfs};

/// Why a directory cannot be made or written, in words.
///
/// Looks at the directory, or at the nearest one above it that is there. It may be otherwise by the time it is made.
pub(super) fn obstacle(dir: &Path) -> Option<String> {
    let whole = match std::path::absolute(dir) {
        Ok(whole) => whole,
        Err(error) => return Some(format!("it is not a path: {error}")),
    };
    for place in whole.ancestors() {
        match std::fs::metadata(place) {
            Ok(found) if !found.is_dir() => return Some(format!("`{}` is not a directory", place.display())),
            Ok(_) if holds_no_files(place) => {
                return Some(format!("the file system at `{}` holds no files of ours", place.display()));
            }
            Ok(_) => return may_write(place).err().map(|error| format!("`{}`: {error}", place.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A link to nothing is in the way, too.
                if std::fs::symlink_metadata(place).is_ok() {
                    return Some(format!("`{}` is a link to nothing", place.display()));
                }
            }
            // Seen from the next one above: there it says which part is no directory.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Some(format!("`{}`: {error}", place.display())),
        }
    }
    None
}

/// The kernel's own file systems: rights may say yes, and no file can be made.
fn holds_no_files(dir: &Path) -> bool {
    /// Linux's number of sysfs.
    const SYSFS_MAGIC: FsWord = 0x6265_6572;
    statfs(dir).is_ok_and(|system| [PROC_SUPER_MAGIC, SYSFS_MAGIC].contains(&system.f_type))
}

fn may_write(dir: &Path) -> io::Result<()> {
    Ok(access(dir, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// The sinks' own directories, if they have one.
pub(super) fn of_sink(kind: &crate::config::SinkKind) -> Option<&PathBuf> {
    use crate::config::SinkKind;
    match kind {
        SinkKind::Delta(delta) => Some(&delta.path),
        SinkKind::Files(files) => Some(&files.path),
        SinkKind::Channel(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a path that only the start finds to be impossible, and a path that is refused although it can be made.
    #[test]
    fn what_stands_in_the_way_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        std::fs::write(root.join("file"), "").expect("written");
        std::os::unix::fs::symlink("gone", root.join("link")).expect("linked");
        for fine in ["", "a", "a/b/c"] {
            assert_eq!(obstacle(&root.join(fine)), None, "{fine}");
        }
        for (path, named, why) in [
            ("file", "file", "not a directory"),
            ("file/below/it", "file", "not a directory"),
            ("link", "link", "link to nothing"),
            ("link/below", "link", "link to nothing"),
        ] {
            let said = obstacle(&root.join(path)).expect("it cannot be made");
            assert!(said.contains(&format!("/{named}`")) && said.contains(why), "{path}: {said}");
        }
        assert_eq!(root.read_dir().expect("listed").count(), 2, "looking changes nothing");
    }

    /// Would catch a place of the kernel's own, where rights say yes and no file can ever be.
    #[test]
    fn a_file_system_without_room_for_files_is_named() {
        let said = obstacle(Path::new("/proc/landfall/data")).expect("nothing is stored there");
        assert!(said.contains("`/proc`") && said.contains("holds no files"), "{said}");
    }
}
