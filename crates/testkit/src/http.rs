//! A small HTTP/1.1 client over one plain connection: what the tests need to publish and read, with nothing in between
//! that could retry a request behind their back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The largest answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to one server, kept open between requests.
#[derive(Debug)]
pub struct HttpClient {
    authority: String,
    connection: Option<BufReader<TcpStream>>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The body's lines as JSON.
    pub fn json_lines(&self) -> Result<Vec<serde_json::Value>> {
        let lines = self.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).context("a line is not JSON")).collect()
    }
}

impl HttpClient {
    /// A client of `http://HOST:PORT`.
    pub fn new(address: &str) -> Self {
        HttpClient {
            authority: address.trim_start_matches("http://").trim_end_matches('/').to_owned(),
            connection: None,
        }
    }

    /// Reads.
    pub fn get(&mut self, path: &str) -> Result<HttpAnswer> {
        self.send("GET", path, &[], &[])
    }

    /// Posts a body. An error means that the outcome is not known: the request is never sent a second time.
    pub fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<HttpAnswer> {
        self.send("POST", path, headers, body)
    }

    fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<HttpAnswer> {
        let answer = self.exchange(method, path, headers, body);
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    fn exchange(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<HttpAnswer> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let stream = TcpStream::connect(&self.authority)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                none.insert(BufReader::new(stream))
            }
        };
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n", self.authority, body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        connection.get_mut().write_all(&request)?;
        let status_line = read_line(connection)?;
        let status: u16 = status_line.split(' ').nth(1).context("no status")?.parse()?;
        let mut answer = HttpAnswer { status, headers: Vec::new(), body: Vec::new() };
        loop {
            let line = read_line(connection)?;
            let Some((name, value)) = line.split_once(':') else { break };
            answer.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(read_line(connection)?.split(';').next().unwrap_or("").trim(), 16)?;
                read_exactly(connection, size, &mut answer.body)?;
                read_line(connection)?;
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = answer.header("content-length").map(str::parse::<usize>).transpose()? {
            read_exactly(connection, length, &mut answer.body)?;
        }
        if answer.header("connection") == Some("close") {
            self.connection = None;
        }
        Ok(answer)
    }
}

fn read_line(connection: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    let read = connection.by_ref().take(64 << 10).read_line(&mut line)?;
    if read == 0 {
        bail!("the connection was closed");
    }
    Ok(line.trim_end().to_owned())
}

fn read_exactly(connection: &mut BufReader<TcpStream>, length: usize, body: &mut Vec<u8>) -> Result<()> {
    if body.len().saturating_add(length) > ANSWER_BYTES_MAX {
        bail!("an answer of more than {ANSWER_BYTES_MAX} B");
    }
    let start = body.len();
    body.resize(start + length, 0);
    connection.read_exact(body.get_mut(start..).context("the body was just grown")?)?;
    Ok(())
}
