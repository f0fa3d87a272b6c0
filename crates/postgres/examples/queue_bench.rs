//! Prints how the change queue compares with a plain bounded channel on this machine.

use landfall_postgres::bench_queue;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for _ in 0..3 {
        let result = bench_queue(3_000_000, 200).await?;
        println!(
            "queue {:.2} M/s, channel {:.2} M/s, ratio {:.1}, held at most {} KiB",
            result.queue_per_second / 1e6,
            result.channel_per_second / 1e6,
            result.ratio,
            result.held_bytes_max / 1024
        );
    }
    Ok(())
}
