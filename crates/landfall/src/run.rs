//! `landfall run`: everything of one configuration, until a signal.

use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::runtime::Runtime;

use crate::assembly::{self, ConfigText, PlanOptions, Running, ShutdownReport};
use crate::cli::RunArgs;
use crate::config;
use crate::exit::Exit;
use crate::logging;
use crate::signals::Signals;

/// How often the recorder gives up samples of histograms that nobody has asked for.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Plans, starts, waits, drains.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<Exit> {
    logging::start(args.log_json, "warn,landfall=info");
    let loaded = config::load(&args.config);
    if !loaded.findings.is_empty() {
        eprintln!("{}", loaded.render());
    }
    let Some(config) = loaded.config else { return Ok(Exit::Failed) };
    let runtime = runtime(config.process.io_threads)?;
    let text = ConfigText { file: loaded.file, text: loaded.source };
    let exit = runtime.block_on(serve(config, text, args.exit_on_failure));
    // What still runs was given up by name: the process ends with it. To take the runtime away from under it would only
    // make it panic, and a blocking read of a dead disk would be waited for.
    std::mem::forget(runtime);
    exit
}

/// The runtime of all `io` threads.
pub(crate) fn runtime(io_threads: usize) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(io_threads).thread_name("io").enable_all().build()
}

/// The process's metrics, recorded from now on.
pub(crate) fn metrics() -> Option<PrometheusHandle> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    // Taken already: another command of this process records.
    metrics::set_global_recorder(recorder).ok()?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(METRICS_UPKEEP);
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    Some(handle)
}

async fn serve(config: config::Config, text: ConfigText, exit_on_failure: bool) -> anyhow::Result<Exit> {
    let mut signals = Signals::take()?;
    let plan = assembly::plan(&config, &text.text, PlanOptions { online: false }).await?;
    if !plan.findings.is_empty() {
        plan.findings.iter().for_each(|finding| eprintln!("{}", finding.render(&text.file, &text.text)));
        return Ok(Exit::Failed);
    }
    let metrics = metrics();
    let running = Running::start(config, text, metrics).await?;
    eprintln!("landfall: listening on http://{}", running.address());
    let failed = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "draining; a second signal stops at once");
            false
        }
        name = running.any_failed(), if exit_on_failure => {
            tracing::error!(pipeline = %name, "failed for good; draining, as --exit-on-failure says");
            true
        }
    };
    let report = tokio::select! {
        report = running.shutdown() => report,
        signal = signals.next() => {
            eprintln!("landfall: stopped by a second signal; what was not committed is read again at the next start");
            // At once means at once: no destructor may wait for a disk or a peer.
            std::process::exit(Exit::Signalled(signal).code().into());
        }
    };
    print_report(&report);
    Ok(if failed { Exit::Failed } else { report.exit() })
}

/// For people, then one line for programs (E75).
pub(crate) fn print_report(report: &ShutdownReport) {
    for pipeline in &report.pipelines {
        let committed: Vec<String> =
            pipeline.committed.iter().map(|(partition, offset)| format!("{partition}:{offset}")).collect();
        eprintln!(
            "landfall: pipeline {}: {}, committed {}",
            pipeline.pipeline,
            serde_json::to_value(pipeline.ending)
                .ok()
                .and_then(|word| Some(word.as_str()?.to_owned()))
                .unwrap_or_default(),
            if committed.is_empty() { "nothing".to_owned() } else { committed.join(" ") }
        );
        if let Some(cause) = &pipeline.cause {
            eprintln!("landfall:   {cause}");
        }
        for range in &pipeline.unfinished {
            let sink = range.sink.as_deref().unwrap_or("dead letters");
            eprintln!(
                "landfall:   unfinished: partition {} [{}, {}) at {sink}: {}",
                range.partition, range.from, range.to, range.cause
            );
        }
        for (sink, balance) in &pipeline.balance {
            eprintln!(
                "landfall:   {sink}: in {} = delivered {} + filtered {} + dead-lettered {} + in flight {}",
                balance.rows_in, balance.delivered, balance.filtered, balance.dead_lettered, balance.in_flight
            );
        }
    }
    if let Ok(line) = serde_json::to_string(report) {
        eprintln!("{line}");
    }
}
