//! A store that fails, or lets others act, before or after a put of a commit; everything else is the local store's.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use crate::local_store::LocalStore;

type Act = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// What happens to one put whose path ends as named.
#[derive(Clone)]
pub(super) enum Fault {
    /// It goes through.
    Passes,
    /// It fails and nothing is stored.
    Fails,
    /// It is stored and the answer is lost.
    AnswerLost,
    /// Someone else acts first; then it goes through.
    After(Act),
    /// The caller's task panics, before or after it is stored.
    Panics { is_stored: bool },
}

/// See the module.
#[derive(Clone)]
pub(super) struct FaultStore {
    inner: LocalStore,
    script: Arc<Mutex<VecDeque<(String, Fault)>>>,
    puts: Arc<Mutex<Vec<String>>>,
}

impl FaultStore {
    pub(super) fn new() -> Self {
        FaultStore { inner: LocalStore::new(), script: Arc::default(), puts: Arc::default() }
    }

    /// The next put of a path that ends in `suffix` meets the fault.
    pub(super) fn on_put(&self, suffix: &str, fault: Fault) {
        self.script.lock().push_back((suffix.into(), fault));
    }

    /// Faults that nothing has met yet are taken back.
    pub(super) fn forget(&self) {
        self.script.lock().clear();
    }

    pub(super) fn done(&self) -> bool {
        self.script.lock().is_empty()
    }

    /// Paths of all single puts, in order.
    pub(super) fn puts(&self) -> Vec<String> {
        self.puts.lock().clone()
    }

    fn fault(&self, location: &Path) -> Option<Fault> {
        let mut script = self.script.lock();
        let at = script.iter().position(|(suffix, _)| location.as_ref().ends_with(suffix.as_str()))?;
        script.remove(at).map(|(_, fault)| fault)
    }
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultStore")
    }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultStore")
    }
}

fn broken() -> Error {
    Error::Generic { store: "FaultStore", source: "503 from the store".into() }
}

#[async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.puts.lock().push(location.to_string());
        match self.fault(location) {
            None | Some(Fault::Passes) => self.inner.put_opts(location, payload, opts).await,
            Some(Fault::Fails) => Err(broken()),
            Some(Fault::AnswerLost) => {
                self.inner.put_opts(location, payload, opts).await?;
                Err(broken())
            }
            Some(Fault::After(act)) => {
                act().await;
                self.inner.put_opts(location, payload, opts).await
            }
            Some(Fault::Panics { is_stored }) => {
                if is_stored {
                    self.inner.put_opts(location, payload, opts).await?;
                }
                panic!("scripted: a put panics")
            }
        }
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        match self.fault(location) {
            Some(Fault::Fails) => Err(broken()),
            _ => self.inner.put_multipart_opts(location, opts).await,
        }
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
