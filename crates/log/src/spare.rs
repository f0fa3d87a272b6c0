//! Buffers that were read into and are free again. A new buffer of a mebibyte is cleared by the system, page by page, before
//! it is read into; one that comes back is not. A reader has few at a time, so few are kept.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

/// Buffers kept for one reader, and the largest of them.
const KEPT_MAX: usize = 4;
const KEPT_BYTES_MAX: usize = 4 << 20;

/// See the module. Clones share what is kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spare(Arc<Mutex<Vec<Vec<u8>>>>);

/// A buffer that goes home once nobody holds its bytes any more.
struct Lent {
    buffer: Vec<u8>,
    len: usize,
    home: Weak<Mutex<Vec<Vec<u8>>>>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade()
            && self.buffer.capacity() <= KEPT_BYTES_MAX
        {
            let mut kept = home.lock();
            if kept.len() < KEPT_MAX {
                kept.push(std::mem::take(&mut self.buffer));
            }
        }
    }
}

impl Spare {
    /// `want` bytes, filled by `read`, which says how many there are.
    pub(crate) fn filled<E>(&self, want: usize, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<Bytes, E> {
        let mut buffer = self.0.lock().pop().unwrap_or_default();
        if buffer.len() < want {
            buffer.resize(want, 0);
        }
        let mut lent = Lent { buffer, len: 0, home: Arc::downgrade(&self.0) };
        lent.len = read(lent.buffer.get_mut(..want).unwrap_or_default())?.min(want);
        Ok(Bytes::from_owner(lent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(spare: &Spare, want: usize, with: u8, got: usize) -> Bytes {
        let read = |buffer: &mut [u8]| {
            buffer.fill(with);
            Ok::<_, std::io::Error>(got)
        };
        spare.filled(want, read).expect("nothing fails")
    }

    /// Catches a buffer that is lent again while someone reads it, and bytes of an earlier read behind the end of this one.
    #[test]
    fn a_buffer_comes_back_only_when_nobody_holds_it() {
        let spare = Spare::default();
        let first = filled(&spare, 100, 1, 100);
        let part = first.slice(10..20);
        drop(first);
        let second = filled(&spare, 50, 2, 50);
        assert!(part.iter().all(|byte| *byte == 1) && second.iter().all(|byte| *byte == 2));
        drop(part);
        assert_eq!(spare.0.lock().len(), 1);
        let third = filled(&spare, 40, 3, 30);
        assert_eq!((third.len(), spare.0.lock().len()), (30, 0));
        assert!(third.iter().all(|byte| *byte == 3));
        drop((second, third));
        assert_eq!(spare.0.lock().len(), 2);
    }

    /// Catches buffers that pile up, one too large that stays, and one that comes home to nobody.
    #[test]
    fn few_and_small_buffers_are_kept() {
        let spare = Spare::default();
        let many: Vec<Bytes> = (0..10).map(|_| filled(&spare, 10, 1, 10)).collect();
        let large = filled(&spare, KEPT_BYTES_MAX + 1, 1, 1);
        drop(large);
        assert_eq!(spare.0.lock().len(), 0);
        drop(many);
        assert_eq!(spare.0.lock().len(), KEPT_MAX);
        let left = filled(&spare, 10, 7, 10);
        drop(spare);
        assert_eq!(left.first(), Some(&7));
    }
}
