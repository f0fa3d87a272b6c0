//! Memory and files of a group stay within what the options allow (E126).

use landfall_engine::contract::ShardWriter;
use landfall_types::ByteSize;

use super::harness::{directory, landed, number, numbers, open, sealed};
use crate::DeltaOptions;

/// Catches an open file, with its row group, for every value that ever came.
#[tokio::test(flavor = "multi_thread")]
async fn many_partition_values_bound_memory() {
    let place = directory();
    let options = DeltaOptions { partition_by: vec!["n".into()], max_open_files: 4, ..DeltaOptions::new(&place.path) };
    let most = options.memory_max(true, false).as_usize();
    let opened = open(options).await;
    for at in 0..5 {
        opened.writer.write(&sealed(&opened.plan.schema, 0, 1, at * 10..at * 10 + 10)).await.expect("taken");
        let held = opened.writer.held();
        assert!(held.open_files <= 4, "{held:?}");
        assert!(held.memory <= most, "{held:?}");
    }
    assert!(opened.writer.held().closed_early >= 40, "counted");
    opened.writer.barrier().await.expect("settled");
    let listing = crate::table_files(&place.path).await.expect("a table");
    let mut values: Vec<i64> = listing
        .files
        .iter()
        .map(|file| file.partition_values[0].as_deref().expect("not NULL").parse().expect("a number"))
        .collect();
    values.sort_unstable();
    assert_eq!(values, (0..50).map(|offset| number(0, offset)).collect::<Vec<_>>());
}

/// Catches a row group that grows with the group, and a file that passes its target without end.
#[tokio::test(flavor = "multi_thread")]
async fn files_close_at_their_target_and_row_groups_before() {
    let place = directory();
    let options = DeltaOptions {
        target_file_size: ByteSize::mib(1),
        row_group_bytes: ByteSize::mib(1),
        compression: crate::Compression::None,
        ..DeltaOptions::new(&place.path)
    };
    let opened = open(options).await;
    let mut most = 0;
    for at in 0..30 {
        opened
            .writer
            .write(&sealed(&opened.plan.schema, 0, 1, at * 10_000..at * 10_000 + 10_000))
            .await
            .expect("taken");
        most = most.max(opened.writer.held().memory);
    }
    assert!(most <= 3 << 20, "a row group and what came in one write: {most}");
    assert!(opened.writer.held().closed_files >= 2, "{:?}", opened.writer.held());
    opened.writer.barrier().await.expect("settled");
    let listing = crate::table_files(&place.path).await.expect("a table");
    assert!(listing.files.iter().all(|file| file.size < 3 << 20), "{:?}", listing.files);
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..300_000)]));
}

/// Catches a file over one upload part that arrives with its parts out of place.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_many_parts_reads_back_whole() {
    let place = directory();
    let options = DeltaOptions { compression: crate::Compression::None, ..DeltaOptions::new(&place.path) };
    let opened = open(options).await;
    for at in 0..12 {
        opened
            .writer
            .write(&sealed(&opened.plan.schema, 0, 1, at * 80_000..at * 80_000 + 80_000))
            .await
            .expect("taken");
    }
    opened.writer.barrier().await.expect("settled");
    let listing = crate::table_files(&place.path).await.expect("a table");
    assert_eq!(listing.files.len(), 1);
    assert!(listing.files[0].size > 11 << 20, "three parts: {}", listing.files[0].size);
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..960_000)]));
}
