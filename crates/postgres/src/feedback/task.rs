//! The feedback task: the core's shell.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::{sleep_until, timeout};

use super::{DurableLsn, FeedbackCore, FeedbackRules, FeedbackStep, StreamProgress};
use crate::Lsn;
use crate::meters::StreamMeters;
use crate::transport::{FeedbackHandle, StatusUpdate};

/// How long the last message of a connection may take.
const LAST_MESSAGE: Duration = Duration::from_secs(2);

/// Why it ended.
#[derive(Debug)]
pub enum FeedbackEnd {
    /// The stream is over and the last message is out.
    Stopped,
    /// The peer is silent for so long (LF-PG0108).
    Silent(Duration),
    /// It cannot be reached.
    Broken(io::Error),
}

/// See the module. Spawned per connection, so that it runs while the pump waits.
pub(crate) struct FeedbackTask<H> {
    pub(crate) handle: H,
    pub(crate) rules: FeedbackRules,
    pub(crate) progress: Arc<StreamProgress>,
    pub(crate) durable: Arc<DurableLsn>,
    pub(crate) meters: StreamMeters,
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl<H: FeedbackHandle> FeedbackTask<H> {
    pub(crate) async fn run(mut self) -> FeedbackEnd {
        let mut core = FeedbackCore::new(self.rules, now());
        loop {
            if self.progress.is_stopped.load(Ordering::Acquire) {
                return self.stop(core).await;
            }
            if self.progress.wants_reply.swap(false, Ordering::AcqRel) {
                core.reply_wanted();
            }
            let sight = self.progress.sight(&self.durable);
            match core.step(now(), sight) {
                FeedbackStep::Send(status) => {
                    // A peer that does not read fills the socket; that is as silent as one that does not write.
                    match timeout(self.rules.liveness, self.handle.send(status)).await {
                        Ok(Ok(())) => self.sent(status),
                        Ok(Err(error)) => return FeedbackEnd::Broken(error),
                        Err(_) => return FeedbackEnd::Silent(self.rules.liveness),
                    }
                }
                FeedbackStep::Silent(silent) => return FeedbackEnd::Silent(silent),
                FeedbackStep::Wait(until) => {
                    tokio::select! {
                        () = sleep_until(until.into()) => {}
                        () = self.durable.moved.notified() => {}
                        () = self.progress.wake.notified() => {}
                    }
                }
            }
        }
    }

    /// The last message, and the end of our side. If it does not go out, the server is told less than is durable, which
    /// costs nothing but a repeat.
    async fn stop(mut self, mut core: FeedbackCore) -> FeedbackEnd {
        let status = core.last(now(), self.progress.sight(&self.durable));
        let last = async {
            self.handle.send(status).await?;
            self.handle.finish().await
        };
        match timeout(LAST_MESSAGE, last).await {
            Ok(Ok(())) => self.sent(status),
            Ok(Err(error)) => tracing::debug!(%error, "the last feedback did not go out"),
            Err(_) => tracing::debug!("the last feedback did not go out in time"),
        }
        FeedbackEnd::Stopped
    }

    fn sent(&self, status: StatusUpdate) {
        self.durable.told(now());
        let server_end = Lsn(self.progress.server_end.load(Ordering::Relaxed)).max(status.write);
        self.meters.fed_back(&status, server_end);
    }
}
