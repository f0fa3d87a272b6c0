//! The frame reader against well-formed, cut and hostile bytes.

use proptest::prelude::*;

use super::frames::{FrameBuffer, HEAD_MAX, READ_AHEAD, server_time};
use super::scripted::{Owned, data, error, keepalive, message};
use super::{CloseCause, Frame};
use crate::Lsn;
use landfall_types::Timestamp;

const MAX_MESSAGE: usize = 300 << 10;

/// Feeds pieces and takes what is whole, as the transport does; gives the frames and the largest buffer seen.
fn read(mut bytes: &[u8], mut piece: impl FnMut() -> usize, max_message: usize) -> (Vec<Owned>, usize) {
    let mut buffer = FrameBuffer::new(max_message, &[]);
    let (mut frames, mut largest) = (Vec::new(), 0);
    loop {
        match buffer.announced() {
            Err(cause) => {
                frames.push(Owned::Closed(cause.to_string()));
                return (frames, largest);
            }
            Ok(Some(announced)) if announced.is_whole => {
                let frame = Owned::of(&buffer.take().expect("it is whole"));
                if let Owned::Data(_, bytes) | Owned::Oversized(_, _, bytes) = &frame {
                    assert_eq!(bytes.len(), announced.bytes);
                }
                frames.push(frame);
                continue;
            }
            Ok(Some(announced)) => {
                assert!(announced.bytes <= max_message);
                buffer.grow();
            }
            Ok(None) => {}
        }
        let space = buffer.space();
        largest = largest.max(space.len());
        let count = piece().max(1).min(space.len()).min(bytes.len());
        if count == 0 {
            assert!(bytes.is_empty(), "no space while bytes are left");
            return (frames, largest);
        }
        let (now, later) = bytes.split_at(count);
        space[..count].copy_from_slice(now);
        bytes = later;
        buffer.filled(count);
    }
}

fn some_frame() -> impl Strategy<Value = (Vec<u8>, Option<Owned>)> {
    prop_oneof![
        6 => (any::<u64>(), proptest::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(lsn, bytes)| (data(lsn, &bytes), Some(Owned::Data(lsn, bytes)))),
        1 => (any::<u64>(), READ_AHEAD..MAX_MESSAGE).prop_map(|(lsn, len)| {
            let bytes = vec![lsn as u8; len];
            (data(lsn, &bytes), Some(Owned::Data(lsn, bytes)))
        }),
        1 => (any::<u64>(), MAX_MESSAGE + 1..MAX_MESSAGE * 2).prop_map(|(lsn, len)| {
            let bytes = vec![lsn as u8; len];
            (data(lsn, &bytes), Some(Owned::Oversized(lsn, len as u64, bytes[..HEAD_MAX].to_vec())))
        }),
        2 => (any::<u64>(), any::<bool>())
            .prop_map(|(end, reply)| (keepalive(end, reply), Some(Owned::KeepAlive(end, reply)))),
        1 => Just((message(b'N', b"Mnotice\0\0"), None)),
        1 => Just((message(b'S', b"TimeZone\0UTC\0"), None)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Catches a frame that is lost, doubled or damaged because the network cut it somewhere; oversized ones too (P5).
    #[test]
    fn frames_survive_any_cut(
        frames in proptest::collection::vec(some_frame(), 1..20),
        pieces in proptest::collection::vec(prop_oneof![1usize..40, 1usize..100_000], 1..40),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
        let expected: Vec<Owned> = frames.into_iter().filter_map(|(_, frame)| frame).collect();
        let mut turn = pieces.iter().copied().cycle();
        let (seen, largest) = read(&bytes, || turn.next().unwrap_or(1), MAX_MESSAGE);
        prop_assert_eq!(seen, expected);
        prop_assert!(largest <= MAX_MESSAGE + 64, "{} bytes of buffer", largest);
    }

    /// Catches bytes that panic the reader or make it allocate what they claim (I14).
    #[test]
    fn hostile_bytes_neither_panic_nor_allocate(
        prefix in proptest::collection::vec(some_frame(), 0..3),
        noise in proptest::collection::vec(any::<u8>(), 0..2_000),
        tag in proptest::sample::select(b"dNSAEcCZTDWv\0\xff".to_vec()),
        length in any::<u32>(),
        kind in proptest::sample::select(b"wkrh\0".to_vec()),
        piece in 1usize..500,
    ) {
        let mut bytes: Vec<u8> = prefix.into_iter().flat_map(|(bytes, _)| bytes).collect();
        bytes.push(tag);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(&noise);
        let (_, largest) = read(&bytes, || piece, MAX_MESSAGE);
        prop_assert!(largest <= MAX_MESSAGE + 64, "{} bytes of buffer", largest);
    }
}

fn only(bytes: &[u8]) -> Owned {
    let (frames, _) = read(bytes, || usize::MAX, MAX_MESSAGE);
    assert_eq!(frames.len(), 1, "{frames:?}");
    frames.into_iter().next().unwrap()
}

/// Catches a damaged stream that is read on as if nothing were, and a message that does not name what is wrong.
#[test]
fn what_is_not_of_the_protocol_ends_the_stream_with_the_reason() {
    for (bytes, word) in [
        (message(b'd', b""), "without content"),
        (message(b'd', b"w1234"), "shorter than its header"),
        (message(b'd', b"k1234"), "keepalive of 9 bytes"),
        (message(b'd', b"x"), "kind 0x78"),
        (message(b'v', b""), "0x76"),
        (vec![b'd', 0, 0, 0, 3], "3 bytes long"),
        (vec![b'E', 0x7f, 0xff, 0xff, 0xff], "65536 is the most"),
    ] {
        let Owned::Closed(text) = only(&bytes) else { panic!("{bytes:?} is taken") };
        assert!(text.contains(word) && text.contains("LF-PG0117"), "{text}");
    }
}

/// Catches an end in order that looks like damage, and a server's reason that is lost.
#[test]
fn the_servers_end_and_its_reason_come_through() {
    for end in [message(b'c', b""), message(b'C', b"COPY 0\0")] {
        let Owned::Closed(text) = only(&end) else { panic!("it is taken") };
        assert!(text.contains("at its shutdown"), "{text}");
    }
    let Owned::Closed(text) = only(&error("FATAL", "57P01", "terminating connection")) else { panic!("it is taken") };
    assert!(text.contains("FATAL 57P01: terminating connection"), "{text}");
}

/// Catches a time that wraps: the server counts from 2000, and any number may come.
#[test]
fn times_of_the_server_saturate() {
    for (sent, expected) in [(0, 946_684_800_000_000), (i64::MAX, i64::MAX), (i64::MIN, i64::MIN + 946_684_800_000_000)]
    {
        let mut bytes = data(1, b"x");
        bytes[22..30].copy_from_slice(&sent.to_be_bytes());
        let mut buffer = FrameBuffer::new(MAX_MESSAGE, &bytes);
        buffer.announced().unwrap();
        let Some(Frame::Data { server_time: Timestamp(time), .. }) = buffer.take() else { panic!("it is whole") };
        assert_eq!(time, expected);
    }
    assert_eq!(server_time(Timestamp(946_684_800_000_000)), 0);
}

/// Catches memory of a large message that stays after it.
#[test]
fn a_large_messages_memory_goes_with_it() {
    let bytes = data(7, &vec![1; MAX_MESSAGE]);
    let mut buffer = FrameBuffer::new(MAX_MESSAGE, &[]);
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let _ = buffer.announced();
        buffer.grow();
        let space = buffer.space();
        let count = space.len().min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        buffer.filled(count);
    }
    let Some(Frame::Data { lsn, bytes, .. }) = buffer.take() else { panic!("it is whole") };
    assert_eq!((lsn, bytes.len()), (Lsn(7), MAX_MESSAGE));
    assert_eq!(buffer.space().len(), READ_AHEAD);
}

/// P11. Catches a reader that takes a frame into memory before somebody has room for it.
#[test]
fn a_frame_that_nobody_asked_for_stays_outside() {
    let bytes = data(7, &vec![1; MAX_MESSAGE]);
    let mut buffer = FrameBuffer::new(MAX_MESSAGE, &[]);
    let space = buffer.space();
    let count = space.len();
    space.copy_from_slice(&bytes[..count]);
    buffer.filled(count);
    let announced = buffer.announced().unwrap().unwrap();
    assert_eq!((announced.bytes, announced.is_whole), (MAX_MESSAGE, false));
    assert!(!buffer.fits_read_ahead());
    assert_eq!(buffer.space().len(), 0, "more would be read");
    assert!(matches!(buffer.announced(), Ok(Some(_)) | Err(CloseCause::Ended)));
}
