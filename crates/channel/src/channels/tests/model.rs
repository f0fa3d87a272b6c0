//! Random runs of publishes, keys, crashes and restarts against a model of what must be in the log (C101).

use std::collections::BTreeMap;

use landfall_log::Loss;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Publish,
    Batch(u8),
    /// Key, and which of two contents.
    Keyed(u8, bool),
    Read(u8),
    Reopen,
    /// The machine goes down so many device calls later; the seed decides what of the unsynced is lost.
    Crash(u8, u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Publish),
        2 => (1u8..6).prop_map(Step::Batch),
        4 => (0u8..4, any::<bool>()).prop_map(|(key, content)| Step::Keyed(key, content)),
        1 => any::<u8>().prop_map(Step::Read),
        1 => Just(Step::Reopen),
        2 => (0u8..30, any::<u64>()).prop_map(|(calls, seed)| Step::Crash(calls, seed)),
    ]
}

#[derive(Default)]
struct Model {
    /// What is in the log for certain, in order.
    records: Vec<Record>,
    /// Key → offset.
    keys: BTreeMap<u8, u64>,
    /// A publish whose outcome is not known: all of it is in the log, or none.
    unknown: Option<(Vec<Record>, Option<u8>)>,
    next: u64,
}

impl Model {
    fn take(&mut self, records: Vec<Record>, key: Option<u8>, outcome: PublishOutcome) {
        let known = key.and_then(|key| self.keys.get(&key).copied());
        match outcome {
            PublishOutcome::Committed(at) if at.duplicate => assert_eq!(Some(at.first.0), known),
            PublishOutcome::Committed(at) => {
                assert_eq!(at.first.0, self.records.len() as u64);
                assert_eq!(known, None, "a second record under key {key:?}");
                self.keys.extend(key.map(|key| (key, at.first.0)));
                self.records.extend(records);
            }
            PublishOutcome::NotStored(not) if not.error.code() == ch(10) => {
                let in_flight = self.unknown.as_ref().filter(|(_, own)| *own == key).map(|(records, _)| &records[0]);
                let earlier = known.map(|at| &self.records[at as usize]).or(in_flight);
                assert_ne!(earlier.expect("a reused key is known"), &records[0]);
            }
            PublishOutcome::NotStored(_) => {}
            PublishOutcome::Unresolved(_) => {
                // Nothing is taken while an append is uncertain; an equal publish under its key joins it.
                let joined = self.unknown.is_none() || (key.is_some() && self.unknown == Some((records.clone(), key)));
                assert!(joined, "{:?} is not known, and neither is {records:?}", self.unknown);
                self.unknown = Some((records, key));
            }
        }
    }

    /// The log as it was found after a restart.
    fn check(&mut self, found: &[Delivered]) {
        let found: Vec<&Record> = found.iter().map(|one| &one.record).collect();
        let unknown = self.unknown.take();
        if let Some((records, key)) = unknown.filter(|_| found.len() > self.records.len()) {
            self.keys.extend(key.map(|key| (key, self.records.len() as u64)));
            self.records.extend(records);
        }
        assert_eq!(found, self.records.iter().collect::<Vec<_>>());
    }
}

async fn run(steps: Vec<Step>) {
    let mut world = World::in_memory();
    let mut model = Model::default();
    let (mut channels, mut channel) = world.open(small_segments());
    for step in steps {
        let options = PublishOptions { deadline: Some(Duration::from_millis(150)), ..PublishOptions::default() };
        match step {
            Step::Publish | Step::Batch(_) => {
                let count = if let Step::Batch(count) = step { count } else { 1 };
                let records: Vec<_> = (0..count).map(|_| record(model.next)).collect();
                model.next += 1;
                let outcome = channel.publish_batch(records.clone(), options).await;
                model.take(records, None, outcome);
            }
            Step::Keyed(key, content) => {
                let key_text = format!("key {key}");
                let one = Record { idempotency_key: Some(key_text.into()), ..record(u64::from(content)) };
                let outcome = channel.publish(one.clone(), options).await;
                model.take(vec![one], Some(key), outcome);
            }
            Step::Read(from) => {
                if model.unknown.is_none() {
                    let from = u64::from(from) % (model.records.len() as u64 + 1);
                    match try_read_from(&channel, P0, Offset(from)).await {
                        Ok(read) => {
                            let records: Vec<_> = read.into_iter().map(|one| one.record).collect();
                            assert_eq!(records, model.records[from as usize..]);
                        }
                        // Housekeeping may have made the call that was the last one.
                        Err(error) => assert!(world.vfs.as_ref().unwrap().memory.is_down(), "{error}"),
                    }
                }
            }
            Step::Crash(calls, _) if calls > 0 && !world.vfs.as_ref().unwrap().memory.is_down() => {
                world.vfs.as_ref().unwrap().memory.crash_after(u64::from(calls));
            }
            Step::Crash(_, seed) => {
                let loss = if seed % 2 == 0 { Loss::Unsynced } else { Loss::Random(seed) };
                let memory = world.vfs.as_ref().unwrap().memory.power_cut(loss);
                drop((channels, channel));
                world = World { vfs: Some(Arc::new(SlowVfs::over(memory))), ..world };
                (channels, channel) = world.open(small_segments());
                model.check(&read_all(&channel, P0).await);
            }
            Step::Reopen => {
                if !world.vfs.as_ref().unwrap().memory.is_down() {
                    channels.close();
                    let memory = world.vfs.as_ref().unwrap().memory.power_cut(Loss::Nothing);
                    world = World { vfs: Some(Arc::new(SlowVfs::over(memory))), ..world };
                    (channels, channel) = world.open(small_segments());
                    model.check(&read_all(&channel, P0).await);
                }
            }
        }
    }
    drop(channel);
    drop(channels);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Catches an outcome that the log does not bear out after any crash and restart: a lost or doubled record, a batch in
    /// part, a key with two records (C100 a, b, c, e).
    #[test]
    fn outcomes_agree_with_the_log_over_crashes_and_restarts(steps in prop::collection::vec(any_step(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
