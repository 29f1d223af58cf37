//! Tests: calls over real connections.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use larder_engine::limit::Limit;
use prost::Message;
use tokio::runtime::Runtime;

use super::super::messages::{Code, DescriptorStatus, RateLimitRequest, RateLimitResponse};
use super::super::{BODY, PATH};
use super::{descriptor, request};
use crate::limit_port::connections::{CANCELLED, STREAMS};
use crate::limit_port::tests::{HOUR, command, connect, server};
use crate::policies::{Policy, pattern};
use crate::server::Server;

/// The first bytes of an HTTP/2 connection.
pub(in crate::limit_port) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The types of HTTP/2 frames.
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const DATA: u8 = 0;

/// A connection of a proxy.
struct Proxy {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
}

impl Proxy {
    fn connect(address: SocketAddr) -> Proxy {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        Proxy { runtime, sender }
    }

    /// Returns all headers and trailers of the reply to `body`, and the body of the reply.
    fn send(&mut self, path: &str, kind: &str, body: Vec<u8>) -> (HeaderMap, Bytes) {
        let request = Request::post(format!("http://larder{path}")).header("content-type", kind);
        let request = request.body(Full::from(body)).unwrap();
        let reply = self.sender.send_request(request);
        self.runtime.block_on(async {
            let reply = reply.await.unwrap();
            assert_eq!(reply.status(), if kind == "application/json" { 415 } else { 200 });
            let mut fields = reply.headers().clone();
            let body = reply.into_body().collect().await.unwrap();
            fields.extend(body.trailers().cloned().unwrap_or_default());
            (fields, body.to_bytes())
        })
    }

    /// Returns the gRPC status of a call, and the message of the reply.
    fn call(&mut self, frame: Vec<u8>) -> (String, RateLimitResponse) {
        let (fields, reply) = self.send(PATH, "application/grpc", frame);
        let status = fields["grpc-status"].to_str().unwrap().to_owned();
        let message = RateLimitResponse::decode(reply.get(5..).unwrap_or_default()).unwrap();
        (status, message)
    }

    fn ask(&mut self, request: &RateLimitRequest) -> RateLimitResponse {
        let (status, reply) = self.call(framed(&request.encode_to_vec()));
        assert_eq!(status, "0");
        reply
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// Returns a frame of HTTP/2.
pub(in crate::limit_port) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Reads a frame of HTTP/2 and returns its kind; `None` at the end of the connection.
fn next_kind(client: &mut impl Read) -> Option<u8> {
    let mut head = [0; 9];
    client.read_exact(&mut head).ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    client.read_exact(&mut vec![0; length]).ok()?;
    Some(head[3])
}

/// Returns a SETTINGS frame without settings. Every HTTP/2 connection begins with a SETTINGS frame.
pub(in crate::limit_port) fn no_settings() -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[])
}

/// Returns a HEADERS frame that does not end its stream. It holds the method POST, the scheme http,
/// the path and the content type. The last two are HPACK literals without indexing.
pub(in crate::limit_port) fn head(stream: u32, path: &str, kind: &str) -> Vec<u8> {
    let mut head = vec![0x83, 0x86];
    for (name, value) in [(4, path), (31, kind)] {
        let name = if name < 15 { vec![name] } else { vec![0x0f, name - 15] };
        head.extend([name, vec![u8::try_from(value.len()).unwrap()], value.into()].concat());
    }
    frame(HEADERS, 4, stream, &head)
}

/// Returns a policy that limits each value of the descriptor entry `user` separately.
fn users(budget: u64) -> Policy {
    let (prefix, descriptor) = (Some("user/".to_owned()), Some(pattern("edge user")));
    Policy { prefix, descriptor, ..Policy::new("users", Limit::fixed(budget, HOUR)) }
}

fn proxy(server: &Server) -> Proxy {
    Proxy::connect(server.limit_addresses()[0])
}

#[test]
fn each_descriptor_has_a_status() {
    let server = server(vec![users(2)]);
    let mut proxy = proxy(&server);
    let both = request(vec![descriptor(&[("user", "ann")]), descriptor(&[("path", "/")])]);
    let shown = |reply: &RateLimitResponse| -> Vec<(Code, Option<u32>)> {
        let status = |status: &DescriptorStatus| {
            (status.code(), status.current_limit.as_ref().map(|_| status.limit_remaining))
        };
        reply.statuses.iter().map(status).collect()
    };
    let reply = proxy.ask(&both);
    assert_eq!(reply.overall_code(), Code::Ok);
    assert_eq!(shown(&reply), [(Code::Ok, Some(1)), (Code::Ok, None)]);
    let limit = reply.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (2, 3, "users"));
    assert_eq!(reply.statuses[0].duration_until_reset.unwrap().seconds, 3600);
    assert!(reply.response_headers_to_add.is_empty());
    proxy.ask(&both);
    let reply = proxy.ask(&both);
    assert_eq!(reply.overall_code(), Code::OverLimit);
    assert_eq!(shown(&reply), [(Code::OverLimit, Some(0)), (Code::Ok, None)]);
    let retry = reply.response_headers_to_add.last().unwrap();
    assert_eq!((&*retry.key, &*retry.value), ("retry-after", "3600"));
    // Memcached clients must see the limiter that the proxy has used.
    assert_eq!(command(&server, "ma user/ann Qusers r"), "NS r0 B2");
    assert_eq!(counts(&server), [("within", 1), ("near", 1), ("over", 2), ("shadow", 0)]);
    let context = server.running.context().unwrap();
    assert_eq!(context.policies().proxies().unlimited(), 3);
}

/// Returns the counters of the policy that `users` creates.
fn counts(server: &Server) -> [(&'static str, u64); 4] {
    server.running.policies().named(b"users").unwrap().counters.totals()
}

#[test]
fn a_shadow_policy_lets_requests_pass() {
    let server = server(vec![Policy { shadow: true, ..users(0) }]);
    let mut proxy = proxy(&server);
    for user in ["ann", &"b".repeat(300)] {
        let reply = proxy.ask(&request(vec![descriptor(&[("user", user)])]));
        assert_eq!(reply.overall_code(), Code::Ok, "{user}");
        assert_eq!(reply.statuses[0].code(), Code::Ok);
    }
    assert_eq!(counts(&server)[3], ("shadow", 2));
}

#[test]
fn exactly_the_limit_is_admitted() {
    const BUDGET: usize = 200;
    let server = server(vec![users(BUDGET as u64)]);
    let address = server.limit_addresses()[0];
    let threads: Vec<_> = (0..6)
        .map(|_| {
            std::thread::spawn(move || {
                let mut proxy = Proxy::connect(address);
                let one = request(vec![descriptor(&[("user", "ann")])]);
                (0..100).filter(|_| proxy.ask(&one).overall_code() == Code::Ok).count()
            })
        })
        .collect();
    let admitted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(admitted, BUDGET);
}

/// A value that is too long must not let a client of the proxy pass.
#[test]
fn a_request_that_is_too_large_is_over_the_limit() {
    let server = server(vec![users(5)]);
    let mut proxy = proxy(&server);
    for length in [251, BODY, 60_000, 1_000_000] {
        let reply = proxy.ask(&request(vec![descriptor(&[("user", &"a".repeat(length))])]));
        assert_eq!(reply.overall_code(), Code::OverLimit, "{length}");
    }
    assert_eq!(proxy.ask(&request(vec![descriptor(&[("user", "a")])])).overall_code(), Code::Ok);
    let context = server.running.context().unwrap();
    assert_eq!((counts(&server)[2], context.policies().proxies().too_large()), (("over", 1), 3));
    context.policies().reset_counters();
    assert_eq!(context.policies().proxies().too_large(), 0);
}

#[test]
fn wrong_calls_say_why() {
    let server = server(vec![users(5)]);
    assert_eq!(command(&server, "set user/text 0 0 1\r\nx"), "STORED");
    let mut proxy = proxy(&server);
    let message = request(vec![descriptor(&[("user", "a")])]).encode_to_vec();
    let compressed = [&[1][..], &framed(&message)[1..]].concat();
    let text = request(vec![descriptor(&[("user", "text")])]).encode_to_vec();
    let cases = [
        (PATH, "application/grpc", framed(&message), "0"),
        (PATH, "application/grpc+proto", framed(&message), "0"),
        ("/v1/limit/users?key=a", "application/grpc", framed(&message), "12"),
        (PATH, "application/grpc", compressed, "12"),
        (PATH, "application/grpc", Vec::new(), "3"),
        (PATH, "application/grpc", framed(&message)[..9].to_vec(), "3"),
        (PATH, "application/grpc", framed(b""), "3"),
        (PATH, "application/grpc", framed(&text), "9"),
    ];
    proxy.send("/v1/forward-auth/users", "application/json", Vec::new());
    for (path, kind, frame, expected) in cases {
        let (fields, _) = proxy.send(path, kind, frame);
        assert_eq!(fields["grpc-status"], expected, "{path} {kind}");
        assert_eq!(fields.contains_key("grpc-message"), expected != "0");
    }
}

/// Bodies that never end, and connections that send nonsense or nothing after the first bytes of
/// HTTP/2, must delay neither other clients nor the stop.
#[test]
fn unfinished_calls_do_not_harm_other_clients() {
    let server = server(vec![users(1_000_000)]);
    let address = server.limit_addresses()[0];
    let mut unfinished: Vec<_> = (0..8)
        .map(|_| {
            let mut client = connect(address);
            let mut bytes = [PREFACE, &no_settings()].concat();
            for stream in 0..16 {
                bytes.extend(head(2 * stream + 1, PATH, "application/grpc"));
                bytes.extend(frame(0, 0, 2 * stream + 1, &[0, 0, 0]));
            }
            client.write_all(&bytes).unwrap();
            client
        })
        .collect();
    for bytes in [&PREFACE[..5], PREFACE, &[PREFACE, &[0xff; 100]].concat()] {
        let mut client = connect(address);
        client.write_all(bytes).unwrap();
        unfinished.push(client);
    }
    let mut proxy = proxy(&server);
    for _ in 0..100 {
        let reply = proxy.ask(&request(vec![descriptor(&[("user", "ann")])]));
        assert_eq!(reply.overall_code(), Code::Ok);
    }
    // The connection with nonsense after the preface is closed; the others are only slow.
    let mut last = unfinished.pop().unwrap();
    let mut seen = Vec::new();
    let _ = last.read_to_end(&mut seen);
    let began = Instant::now();
    server.shutdown(Duration::from_secs(600)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// A stop must tell an idle proxy that its next request needs another connection. Otherwise Envoy
/// sends the next call on this connection, the call fails, and Envoy lets its client's request
/// pass.
#[test]
fn a_stop_tells_idle_proxies() {
    let server = server(Vec::new());
    let mut client = connect(server.limit_addresses()[0]);
    client.write_all(&[PREFACE, &no_settings()].concat()).unwrap();
    let mut kinds = Vec::new();
    kinds.extend(next_kind(&mut client));
    assert_eq!(kinds, [SETTINGS]);
    server.shutdown(Duration::from_secs(600)).unwrap();
    kinds.extend(std::iter::from_fn(|| next_kind(&mut client)));
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
}

/// A stop must wait for a call whose body is arriving. If the call failed, the proxy would let its
/// client's request pass.
#[test]
fn a_stop_waits_for_a_body_that_is_arriving() {
    let server = server(vec![users(1)]);
    let mut client = connect(server.limit_addresses()[0]);
    let message = framed(&request(vec![descriptor(&[("user", "ann")])]).encode_to_vec());
    let call = head(1, PATH, "application/grpc");
    let begun = [PREFACE, &no_settings(), &call, &frame(DATA, 0, 1, &message[..9])].concat();
    client.write_all(&begun).unwrap();
    let mut rest = client.try_clone().unwrap();
    let mut next = || next_kind(&mut client);
    // The server acknowledges the settings after it has read all that was sent.
    let mut seen: Vec<_> = (0..2).filter_map(|_| next()).collect();
    let stopping = std::thread::spawn(move || server.shutdown(Duration::from_secs(600)));
    seen.extend(std::iter::from_fn(&mut next).take_while(|&kind| kind != GOAWAY));
    // The server closes idle connections within the next 200 ms. This connection must stay open.
    std::thread::sleep(Duration::from_millis(200));
    rest.write_all(&frame(DATA, 1, 1, &message[9..])).unwrap();
    seen.extend(std::iter::from_fn(next));
    assert_eq!(seen.iter().filter(|&&kind| kind == DATA).count(), 1, "{seen:?}");
    stopping.join().unwrap().unwrap();
}

/// Envoy cancels a call when its timeout has passed. If the server is delayed, many cancelled calls
/// arrive at once. They must not end the connection, because that would also end the other calls.
#[test]
fn cancelled_calls_do_not_end_the_connection() {
    let server = server(vec![users(1)]);
    let mut client = connect(server.limit_addresses()[0]);
    let mut bytes = [PREFACE, &no_settings()].concat();
    let mut streams = (1..).step_by(2);
    for stream in streams.by_ref().take(CANCELLED) {
        bytes.extend(head(stream, PATH, "application/grpc"));
        bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    let last = streams.next().unwrap();
    let message = framed(&request(vec![descriptor(&[("user", "ann")])]).encode_to_vec());
    bytes.extend(head(last, PATH, "application/grpc"));
    bytes.extend(frame(DATA, 1, last, &message));
    client.write_all(&bytes).unwrap();
    let mut kinds = std::iter::from_fn(|| next_kind(&mut client));
    assert_eq!(kinds.find(|kind| [DATA, GOAWAY].contains(kind)), Some(DATA));
}

/// Requests that were answered before their bodies ended must not keep further requests out.
#[test]
fn bodies_that_never_end_take_no_place_of_further_calls() {
    let server = server(vec![users(1)]);
    let mut client = connect(server.limit_addresses()[0]);
    let last = 2 * STREAMS + 1;
    let mut bytes = [PREFACE, &no_settings()].concat();
    bytes.extend((1..last).step_by(2).flat_map(|stream| head(stream, PATH, "text/plain")));
    client.write_all(&bytes).unwrap();
    let kinds = std::iter::from_fn(|| next_kind(&mut client));
    let resets = kinds.filter(|&kind| kind == RST_STREAM);
    assert_eq!(resets.take(STREAMS as usize).count(), STREAMS as usize);
    let message = framed(&request(vec![descriptor(&[("user", "ann")])]).encode_to_vec());
    let call = [head(last, PATH, "application/grpc"), frame(DATA, 1, last, &message)].concat();
    client.write_all(&call).unwrap();
    let mut kinds = std::iter::from_fn(|| next_kind(&mut client));
    assert_eq!(kinds.find(|kind| [HEADERS, RST_STREAM].contains(kind)), Some(HEADERS));
}

/// With tracing, Envoy copies a header field of its client's request into the call. Such a field
/// must not cause an error, because Envoy would then let the client's request pass.
#[test]
fn a_long_field_of_a_client_is_no_error() {
    let server = server(vec![users(1)]);
    let mut proxy = proxy(&server);
    let mut call = || {
        let message = request(vec![descriptor(&[("user", "ann")])]).encode_to_vec();
        let call = Request::post(format!("http://larder{PATH}"))
            .header("content-type", "application/grpc")
            .header("tracestate", "t".repeat(60 << 10))
            .body(Full::from(framed(&message)))
            .unwrap();
        let reply = proxy.sender.send_request(call);
        proxy.runtime.block_on(async {
            let reply = reply.await.unwrap();
            assert_eq!(reply.status(), 200);
            let body = reply.into_body().collect().await.unwrap().to_bytes();
            RateLimitResponse::decode(&body[5..]).unwrap().overall_code()
        })
    };
    assert_eq!([call(), call()], [Code::Ok, Code::OverLimit]);
}
