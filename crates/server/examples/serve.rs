//! Serves one channel from a directory until Ctrl-C: the server as a library, without the `landfall` binary.
//!
//! `cargo run -p landfall-server --example serve -- DIRECTORY CHANNEL [PORT]`

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_channel::{ChannelOptions, Channels, ProcessOptions};
use landfall_server::{Server, ServerOptions, ServerParts};
use landfall_state::{DataDirLock, StateStore};
use landfall_types::SystemClock;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: serve DIRECTORY CHANNEL [PORT]";
    let directory = PathBuf::from(arguments.next().ok_or(usage)?);
    let name = arguments.next().ok_or(usage)?;
    let port: u16 = arguments.next().map_or(Ok(7420), |port| port.parse())?;

    std::fs::create_dir_all(&directory)?;
    let lock = DataDirLock::acquire(&directory, &SystemClock)?;
    let state = StateStore::open(&lock)?;
    let configured = vec![(name.clone(), ChannelOptions::default())];
    let clock = Arc::new(SystemClock);
    let channels = Channels::open(&directory, configured, ProcessOptions::default(), state.handle(), clock)?;

    let options = ServerOptions { listen: SocketAddr::from(([127, 0, 0, 1], port)), ..ServerOptions::default() };
    let server = Server::bind(options, ServerParts::new(channels.clone())).await?.start();
    println!("channel {name}: http://{}", server.local_addr());
    tokio::signal::ctrl_c().await?;

    let report = server.drain(Duration::from_secs(1), Instant::now() + Duration::from_secs(5)).await;
    for stream in &report.left {
        eprintln!(
            "left unfinished: stream {} of {} from frame {}",
            stream.stream_id, stream.channel, stream.first_unacked
        );
    }
    channels.drain(Instant::now() + Duration::from_secs(5)).await;
    tokio::task::spawn_blocking(move || channels.close()).await?;
    state.close();
    Ok(())
}
