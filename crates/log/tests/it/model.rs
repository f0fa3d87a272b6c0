//! A reference model of some lines against the log, under random orders of everything that can happen to it (C101).

use landfall_log::{Append, Fault, Intent, Loss, MemoryVfs, Opened, Operation, Page, Settled, VisibleTail};
use landfall_types::Offset;
use proptest::prelude::*;

use super::support::{WIDE, open, rows, unit};

#[derive(Clone, Debug)]
enum Act {
    Append { units: u8, len: u16 },
    Fault { operation: u8, after: u8 },
    Prepare,
    Mark,
    Trim { part: u8 },
    Reopen { loss: u8 },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (1u8..9, 0u16..3_000).prop_map(|(units, len)| Act::Append { units, len }),
        2 => (0u8..8, 0u8..6).prop_map(|(operation, after)| Act::Fault { operation, after }),
        2 => Just(Act::Prepare),
        1 => Just(Act::Mark),
        1 => any::<u8>().prop_map(|part| Act::Trim { part }),
        2 => (0u8..6).prop_map(|loss| Act::Reopen { loss }),
    ]
}

/// What must be true of the log.
#[derive(Debug, Default)]
struct Model {
    /// The length of each record, by offset; those below `acked` are for certain.
    lens: Vec<usize>,
    acked: usize,
    log_start: u64,
    epoch: u32,
}

struct Subject {
    vfs: MemoryVfs,
    opened: Opened,
}

fn settle(opened: &mut Opened, evidence: &landfall_log::Evidence) -> bool {
    for _ in 0..64 {
        match opened.writer.settle(evidence, Intent::Keep) {
            Settled::Committed { .. } => return true,
            Settled::Absent { .. } => return false,
            Settled::Uncertain(_) => {}
        }
    }
    panic!("the planned faults are over by now");
}

fn perform(subject: &mut Subject, model: &mut Model, act: &Act) {
    let Subject { vfs, opened } = subject;
    let bare = opened.writer.evidence(Vec::new());
    match act {
        Act::Append { units, len } => {
            let tail = opened.writer.tail();
            let lens: Vec<usize> = (0..usize::from(*units)).map(|n| usize::from(*len) / (n + 1)).collect();
            let units: Vec<_> = (tail.0..).zip(&lens).map(|(n, len)| unit(n, *len)).collect();
            let evidence = opened.writer.evidence(units.clone());
            let is_committed = match opened.writer.append(tail, &units) {
                Append::Durable { .. } => true,
                Append::Refused(_) => false,
                Append::Uncertain(_) => settle(opened, &evidence),
            };
            if is_committed {
                model.lens.extend(lens);
                model.acked = model.lens.len();
            }
        }
        Act::Fault { operation, after } => {
            let other = std::io::ErrorKind::Other;
            let (operation, fault) = match operation {
                0 => (Operation::Write, Fault::Error(other)),
                1 => (Operation::Write, Fault::Torn(std::io::ErrorKind::StorageFull)),
                2 => (Operation::Write, Fault::Short),
                3 => (Operation::Sync, Fault::Error(other)),
                4 => (Operation::Sync, Fault::DoneThenError(other)),
                5 => (Operation::Rename, Fault::Error(other)),
                6 => (Operation::DirSync, Fault::Error(other)),
                _ => (Operation::Allocate, Fault::Error(std::io::ErrorKind::StorageFull)),
            };
            vfs.inject(operation, u64::from(*after), 1, fault);
        }
        // What fails here is tried again by the next one.
        Act::Prepare => drop(opened.preparer.prepare()),
        Act::Mark => {
            if opened.writer.mark().is_err() {
                settle(opened, &bare);
            }
        }
        Act::Trim { part } => {
            let before = opened.writer.tail().0 * u64::from(*part) / 255;
            match opened.writer.trim(Offset(before)) {
                Ok(start) => {
                    assert!(start.0 <= before.max(model.log_start));
                    model.log_start = start.0;
                }
                Err(_) if opened.writer.is_uncertain() => drop(settle(opened, &bare)),
                Err(_) => {}
            }
        }
        Act::Reopen { loss } => {
            let loss = match loss {
                0 => Loss::Nothing,
                1 => Loss::Unsynced,
                seed => Loss::Random(u64::from(*seed) + model.lens.len() as u64),
            };
            let found = vfs.power_cut(loss);
            *opened = open(&found);
            *vfs = found;
            assert!(opened.epoch.0 > model.epoch);
            model.epoch = opened.epoch.0;
            assert!(opened.log_start.0 >= model.log_start);
            model.log_start = opened.log_start.0;
            assert_eq!(opened.damaged, []);
        }
    }
}

/// The log holds what the model says, record by record.
fn compare(subject: &Subject, model: &Model) {
    let tail = subject.opened.writer.tail();
    assert_eq!(tail.0, model.acked as u64, "nothing but what was acknowledged is there");
    let (mut at, mut page) = (Offset(model.log_start), Page::default());
    assert_eq!(subject.opened.reader.log_start(), at);
    while at < tail {
        subject.opened.reader.read(at, VisibleTail(tail), WIDE, &mut page).expect("all is readable");
        for unit in &page.units {
            assert_eq!(unit.first, at);
            assert_eq!(unit.rows, rows(at.0, model.lens[at.0 as usize]));
            at = unit.end();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Would catch any order of appends, faults, marks, trims, housekeeping and power cuts that loses, repeats, moves or
    /// invents a record.
    #[test]
    fn the_log_does_what_the_model_does(acts in prop::collection::vec(act(), 1..60)) {
        let vfs = MemoryVfs::new();
        let opened = open(&vfs);
        let mut model = Model { epoch: opened.epoch.0, ..Model::default() };
        let mut subject = Subject { vfs, opened };
        for act in &acts {
            perform(&mut subject, &mut model, act);
            compare(&subject, &model);
        }
        subject.vfs.heal();
        for loss in 0..4 {
            perform(&mut subject, &mut model, &Act::Reopen { loss });
            compare(&subject, &model);
        }
    }
}
