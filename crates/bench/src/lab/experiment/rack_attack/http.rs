//! One persistent connection of an HTTP/1.1 client. It reads only answers with a `content-length`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::Duration;

use larder_client::{Address, Stream};

use crate::{Error, Result};

/// The longest line of an answer's head, in bytes.
const LINE_MAX: u64 = 8 * 1024;
/// The largest number of lines after the status line, up to and including the empty line.
const LINES_MAX: usize = 100;
/// The longest body, in bytes.
const BODY_MAX: usize = 64 * 1024;
/// The longest time that one read or write may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a web server.
#[derive(Debug)]
pub(super) struct Http {
    stream: BufReader<Stream>,
}

/// An answer without its headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    pub(super) body: String,
}

impl Http {
    /// Connects to a web server.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached.
    pub(super) fn connect(server: &Address) -> Result<Http> {
        let stream = Stream::connect(server, Some(PATIENCE))?;
        stream.set_timeout(Some(PATIENCE)).map_err(broken)?;
        Ok(Http { stream: BufReader::new(stream) })
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// Returns an error if the connection breaks, or if the answer is not in the expected form.
    pub(super) fn get(&mut self, path: &str) -> Result<HttpAnswer> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
        self.stream.get_ref().write_all(request.as_bytes()).map_err(broken)?;
        let status = status_of(&self.line()?).ok_or_else(|| strange("no status"))?;
        let mut length = None;
        for _ in 0..LINES_MAX {
            let line = self.line()?;
            if line.is_empty() {
                let length = length.filter(|&length| length <= BODY_MAX);
                let length = length.ok_or_else(|| strange("no content-length, or a large one"))?;
                return Ok(HttpAnswer { status, body: self.body(length)? });
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok();
            }
        }
        Err(strange("too many headers"))
    }

    /// Reads a line of the head, and returns it without its line end.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        (&mut self.stream).take(LINE_MAX).read_line(&mut line).map_err(broken)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(strange("an incomplete line")),
        }
    }

    fn body(&mut self, length: usize) -> Result<String> {
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).map_err(broken)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

/// Finds the status in `HTTP/1.1 200 OK`.
fn status_of(line: &str) -> Option<u16> {
    line.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()
}

fn broken(error: io::Error) -> Error {
    Error::io("the connection to the application broke", error)
}

fn strange(what: &str) -> Error {
    Error::server(format!("the application sent an answer with {what}"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Sends two requests to a server that answers each with the next of `answers`.
    fn two(answers: [&'static str; 2]) -> [Result<HttpAnswer>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        let server = thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let mut requests = BufReader::new(&socket).lines().map_while(io::Result::ok);
            for answer in answers {
                if !requests.any(|line| line.is_empty()) {
                    break;
                }
                (&socket).write_all(answer.as_bytes()).unwrap();
            }
        });
        let mut http = Http::connect(&address).unwrap();
        let results = [http.get("/a"), http.get("/b")];
        drop(http);
        server.join().unwrap();
        results
    }

    #[test]
    fn a_connection_serves_several_requests() {
        let refused = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 6\r\n\r\nlater\n";
        let [one, other] = two(["HTTP/1.1 200 OK\r\nx: y\r\ncontent-length:2\r\n\r\nok", refused]);
        assert_eq!(one.unwrap(), HttpAnswer { status: 200, body: "ok".into() });
        assert_eq!(other.unwrap(), HttpAnswer { status: 429, body: "later\n".into() });
    }

    #[test]
    fn strange_answers_are_errors() {
        let [one, other] = two(["HTTP/1.1 200 OK\r\n\r\n", "SSH-2.0\r\n"]);
        assert!(one.unwrap_err().to_string().contains("content-length"));
        assert!(other.unwrap_err().to_string().contains("no status"));
        let [one, other] = two(["HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n", "HTTP"]);
        assert!(one.unwrap_err().to_string().contains("content-length"));
        assert!(other.unwrap_err().to_string().contains("incomplete"));
    }
}
