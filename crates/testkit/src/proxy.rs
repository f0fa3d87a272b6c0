//! A TCP proxy that cuts every connection through it on command: what a network does in the middle of a stream.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};

/// Passes bytes both ways until it is told to cut. New connections are passed on again afterwards.
#[derive(Debug)]
pub struct CuttingProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    open: Mutex<Vec<TcpStream>>,
    accepted: AtomicU64,
    ended: AtomicBool,
}

impl CuttingProxy {
    /// A proxy on a free loopback port before `target` (`http://HOST:PORT`).
    pub fn before(target: &str) -> Result<Self> {
        let target = target.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let inner = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if inner.ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { return };
                inner.accepted.fetch_add(1, Ordering::SeqCst);
                if let Ok(server) = TcpStream::connect(&target) {
                    let _ = inner.pass(client, server);
                }
            }
        });
        Ok(CuttingProxy { address, shared })
    }

    /// Where it listens, like `http://127.0.0.1:40123`.
    pub fn address(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections have come.
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Cuts every open connection, both sides, at once. Gives how many halves were cut.
    pub fn cut(&self) -> usize {
        let cut = std::mem::take(&mut *self.shared.lock());
        for stream in &cut {
            let _ = stream.shutdown(Shutdown::Both);
        }
        cut.len()
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn pass(&self, client: TcpStream, server: TcpStream) -> Result<()> {
        self.lock().extend([client.try_clone()?, server.try_clone()?]);
        for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
            std::thread::Builder::new().name("proxy".to_owned()).spawn(move || copy(from, to)).context("a thread")?;
        }
        Ok(())
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(read) if read > 0 => {
                let Some(bytes) = buffer.get(..read) else { break };
                if to.write_all(bytes).is_err() {
                    break;
                }
            }
            _ => break,
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the accept loop, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}
