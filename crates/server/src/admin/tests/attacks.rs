//! Attacks on the admin port. Each tries to change or see something, and must not succeed.

use super::actions::{allowed, post, reply_to, tell};
use super::*;
use crate::admin::actions::{ACTIONS, BODY_MAX};

const SECRET: &str = "secret-value";
const BODIES: [&str; 3] =
    [r#"{"command":"delete guarded"}"#, r#"{"key":"guarded"}"#, r#"{"device":"a","drain":true}"#];

/// A server with an item that no attack may see or delete.
fn guarded() -> Server {
    let server = server();
    let set = format!("set guarded 0 0 {}\r\n{SECRET}\r\n", SECRET.len());
    assert_eq!(tell(&server, set.as_bytes(), 8), b"STORED\r\n");
    server
}

/// Checks that nothing was executed.
fn unharmed(server: &Server) {
    let found = format!("VALUE guarded 0 {}\r\n{SECRET}", SECRET.len());
    assert_eq!(tell(server, b"get guarded\r\n", found.len()), found.as_bytes());
    assert!(get(server, "/metrics").1.contains("\nlarder_admin_actions_total 0\n"));
}

/// Sends each body to each action. In `line` and `headers`, replaces `PATH`, `HOST` and `TOKEN`
/// with the action's path, the server's address and its token. Every reply must have the status
/// `wanted`.
fn attack(server: &Server, line: &str, headers: &str, wanted: u16) {
    let address = server.admin_address().unwrap();
    let token = server.admin_token().unwrap();
    for action in ACTIONS {
        for body in BODIES {
            let fill = |text: &str| {
                let text = text.replace("PATH", action.path).replace("TOKEN", &token);
                text.replace("HOST", &address.to_string())
            };
            let length = body.len();
            let request = format!(
                "{}\r\n{}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}",
                fill(line),
                fill(headers)
            );
            let (code, head, reply) = reply_to(address, request.as_bytes());
            assert_eq!(code, wanted, "{request}\n\n{head}");
            assert!(!reply.contains(SECRET) && !head.contains("access-control"), "{head}");
        }
    }
}

const POST: &str = "POST PATH HTTP/1.1";
const JSON: &str = "Content-Type: application/json\r\n";
const BEARER: &str = "Authorization: Bearer TOKEN\r\n";
const HERE: &str = "Host: HOST\r\n";

/// The server must refuse requests with the headers of a foreign page, even with the right token.
#[test]
fn requests_of_foreign_pages_do_nothing() {
    let server = guarded();
    let with = |headers: &str| format!("{headers}{JSON}{BEARER}");
    for headers in [
        // Hosts that DNS rebinding produces, and a missing or repeated Host.
        "Host: evil.example\r\n",
        "Host: evil.example:11212\r\nOrigin: http://evil.example:11212\r\n",
        "Host: localhost.evil.example\r\n",
        "",
        "Host: HOST\r\nHost: evil.example\r\n",
        "Host: HOST\r\nHost: HOST\r\n",
        // Origins and sites other than the page's own.
        "Host: HOST\r\nOrigin: http://evil.example\r\n",
        "Host: HOST\r\nOrigin: null\r\n",
        "Host: HOST\r\nOrigin: http://127.0.0.1:1\r\n",
        "Host: HOST\r\nOrigin: https://evil.example\r\n",
        "Host: evil.example\r\nOrigin: https://evil.example\r\n",
        "Host: [::1].evil.example\r\n",
        "Host: [::1].evil.example:11212\r\nOrigin: http://[::1].evil.example:11212\r\n",
        "Host: HOST\r\nOrigin: file://\r\n",
        "Host: HOST\r\nSec-Fetch-Site: cross-site\r\n",
        "Host: HOST\r\nSec-Fetch-Site: same-site\r\n",
        "Host: HOST\r\nSec-Fetch-Site: nonsense\r\n",
    ] {
        attack(&server, POST, &with(headers), 403);
    }
    attack(&server, "POST http://evil.examplePATH HTTP/1.1", &with(HERE), 403);
    attack(&server, "POST PATH HTTP/1.0", &with(""), 403);
    unharmed(&server);
}

/// Requests with the content types that a form or a simple request of a browser can send are
/// refused.
#[test]
fn forms_do_nothing() {
    let server = guarded();
    for kind in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: multipart/form-data; boundary=x\r\n",
        "Content-Type: text/plain; application/json\r\n",
        "Content-Type: application/jsonp\r\n",
    ] {
        attack(&server, POST, &format!("{HERE}{kind}{BEARER}"), 415);
    }
    unharmed(&server);
}

#[test]
fn requests_without_the_token_do_nothing() {
    let server = guarded();
    let token = server.admin_token().unwrap();
    let (first, _) = token.split_at(token.len() - 1);
    for headers in [
        "".to_owned(),
        "Authorization: TOKEN\r\n".to_owned(),
        "Authorization: Basic TOKEN\r\n".to_owned(),
        "Authorization: Bearer\r\n".to_owned(),
        "Authorization: Bearer \r\n".to_owned(),
        format!("{BEARER}{BEARER}"),
        "Cookie: token=TOKEN\r\n".to_owned(),
        "X-Token: TOKEN\r\n".to_owned(),
    ] {
        attack(&server, POST, &format!("{HERE}{JSON}{headers}"), 401);
    }
    attack(&server, "POST PATH?token=TOKEN HTTP/1.1", &format!("{HERE}{JSON}"), 401);
    let wrong = [first.to_owned(), format!("{token}0"), token.to_uppercase(), "0".repeat(40)];
    for wrong in wrong {
        let headers = format!("Authorization: Bearer {wrong}\r\n{JSON}");
        let (code, head, _) = post(&server, "/v1/delete", &headers, BODIES[1].as_bytes());
        assert_eq!(code, 401, "{wrong}");
        assert!(head.contains("www-authenticate: Bearer"), "{head}");
    }
    unharmed(&server);
    let failures = get(&server, "/metrics").1;
    assert!(failures.contains("\nlarder_admin_token_failures_total "), "{failures}");
}

/// A flood of wrong tokens is refused, and does not lock out the operator.
#[test]
fn many_wrong_tokens_do_nothing() {
    let server = guarded();
    for forwarded in ["", "X-Forwarded-For: 203.0.113.9\r\n"] {
        let headers = format!("Authorization: Bearer 00000000000000000000\r\n{forwarded}{JSON}");
        let wrong = || post(&server, "/v1/delete", &headers, BODIES[1].as_bytes()).0;
        let codes: Vec<u16> = (0..40).map(|_| wrong()).collect();
        assert!(codes.starts_with(&[401; 10]), "{codes:?}");
        assert!(codes.contains(&429), "{codes:?}");
    }
    unharmed(&server);
    assert!(get(&server, "/metrics").1.contains("\nlarder_admin_token_failures_total 80\n"));
    for forwarded in ["", "X-Forwarded-For: 203.0.113.9\r\n"] {
        let headers = format!("{forwarded}{}", allowed(&server));
        assert_eq!(post(&server, "/v1/item", &headers, br#"{"key":"none"}"#).0, 200);
    }
}

/// Other clients can connect, but they must not cut off an operator from the result of an action.
#[test]
fn connections_of_others_do_not_cut_off_an_action() {
    let server = guarded();
    let address = server.admin_address().unwrap();
    let mut acting = TcpStream::connect(address).unwrap();
    acting.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let (allowed, body) = (allowed(&server), br#"{"key":"none"}"#);
    let length = body.len();
    // The action waits for its body, which is sent at the end.
    let head = format!(
        "POST /v1/item HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{allowed}\
         Content-Length: {length}\r\n\r\n"
    );
    acting.write_all(head.as_bytes()).unwrap();
    // The page has one thread. Once it answers this request, it has received the action's head.
    assert_eq!(get(&server, "/livez").0, 200);
    let mut others: Vec<TcpStream> = Vec::new();
    for _ in 0..80 {
        let mut other = TcpStream::connect(address).unwrap();
        let request = format!("GET /livez HTTP/1.1\r\nHost: {address}\r\n\r\n");
        other.write_all(request.as_bytes()).unwrap();
        other.read_exact(&mut [0; 12]).unwrap();
        others.push(other);
    }
    acting.write_all(body).unwrap();
    let mut reply = [0; 12];
    acting.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"HTTP/1.1 200");
}

/// A page that a proxy with TLS serves has an https origin, whose host is the Host of its requests.
/// Such a page may act.
#[test]
fn a_page_behind_tls_may_act() {
    let settings = Settings { admin_hosts: vec!["cache.example".to_owned()], ..settings() };
    let server = Server::start(settings).unwrap();
    let address = server.admin_address().unwrap();
    let status = |host: &str, origin: &str| {
        let allowed = allowed(&server);
        let request = format!(
            "POST /v1/item HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nConnection: close\r\n\
             Sec-Fetch-Site: same-origin\r\n{allowed}Content-Length: 11\r\n\r\n{{\"key\":\"a\"}}"
        );
        reply_to(address, request.as_bytes()).0
    };
    assert_eq!(status("cache.example", "https://cache.example"), 200);
    assert_eq!(status("127.0.0.1:8443", "https://127.0.0.1:8443"), 200);
    assert_eq!(status("cache.example", "https://evil.example"), 403);
    assert_eq!(status("evil.example", "https://evil.example"), 403);
}

/// Without the token, a client sees names of keys only if its Host is a name or address of this
/// machine.
#[test]
fn names_of_keys_are_not_for_clients_of_a_proxy() {
    let settings = Settings { admin_hosts: vec!["cache.example".to_owned()], ..settings() };
    let server = Server::start(settings).unwrap();
    let address = server.admin_address().unwrap();
    for (host, code) in [("127.0.0.1", "200"), ("localhost:1", "200"), ("cache.example", "401")] {
        let reply = ask(address, &format!("GET /v1/keys HTTP/1.1\r\nHost: {host}"));
        assert!(reply.starts_with(&format!("HTTP/1.1 {code} ")), "{host}: {reply}");
    }
}

#[test]
fn methods_other_than_post_do_nothing() {
    let server = guarded();
    for method in ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "post"] {
        let line = format!("{method} PATH HTTP/1.1");
        attack(&server, &line, &format!("{HERE}{JSON}{BEARER}"), 405);
    }
    // A preflight request, which a browser sends for a script of another origin.
    let headers = "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n\
                   Access-Control-Request-Headers: authorization,content-type\r\n";
    attack(&server, "OPTIONS PATH HTTP/1.1", &format!("{HERE}{headers}"), 405);
    // A POST to a path that is not an action must be refused.
    for path in
        ["/", "/metrics", "/v1/stats", "/v1/history", "/v1/command/", "/v1/Command", "//v1/command"]
    {
        let (code, ..) = post(&server, path, &allowed(&server), BODIES[0].as_bytes());
        assert_eq!(code, 405, "{path}");
    }
    unharmed(&server);
}

#[test]
fn bodies_that_are_no_request_do_nothing() {
    let server = guarded();
    let deep = "[".repeat(BODY_MAX / 2);
    let deep_object = format!("{{\"key\":{}", "{\"a\":".repeat(BODY_MAX / 8));
    let large = format!("{{\"key\":\"{}\"}}", "k".repeat(BODY_MAX));
    for (body, code) in [
        (&b""[..], 400),
        (b"null", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b"{\"key\":1}", 400),
        (b"{\"key\":[\"guarded\"]}", 400),
        (b"{\"key\":\"guarded\",\"key\":\"guarded\"}", 400),
        (b"{\"key\":\"guarded\",\"more\":1}", 400),
        (b"{\"key\":\"guarded\"} {\"key\":\"guarded\"}", 400),
        (b"{\"key\":\"guarded\xff\"}", 400),
        (b"{\"key\":\"guarded\\ud800\"}", 400),
        (b"key=guarded", 400),
        (b"\xef\xbb\xbf{\"key\":\"guarded\"}", 400),
        (deep.as_bytes(), 400),
        (deep_object.as_bytes(), 400),
        (large.as_bytes(), 413),
    ] {
        for path in ["/v1/item", "/v1/delete"] {
            let (seen, head, _) = post(&server, path, &allowed(&server), body);
            assert_eq!(seen, code, "{} {head}", body[..body.len().min(60)].escape_ascii());
        }
    }
    unharmed(&server);
}

/// One request must not be able to carry a second command.
#[test]
fn commands_cannot_be_smuggled() {
    let server = guarded();
    for body in [
        r#"{"command":"mn\r\ndelete guarded"}"#,
        r#"{"command":"mn\ndelete guarded"}"#,
        r#"{"command":"mn\\x0d\\x0adelete guarded"}"#,
        r#"{"command":"mn","value":"delete guarded"}"#,
        r#"{"command":"set a 0 0 1","value":"x\r\ndelete guarded"}"#,
        r#"{"command":"set a 0 0 1 noreply","value":"\r\ndelete guarded"}"#,
        r#"{"command":"set a 0 0 x","value":"delete guarded"}"#,
        r#"{"command":"set a 0 0 99999999","value":"delete guarded"}"#,
        r#"{"command":"delete guarded noreply"}"#,
        r#"{"command":"\\x80\\x01\\x20!!!!!!!!!!!!!!!!!!!!!"}"#,
        r#"{"command":"get a\u0000\r\ndelete guarded"}"#,
        r#"{"command":"get a\u2028delete guarded\u000a"}"#,
    ] {
        let (code, _, reply) = post(&server, "/v1/command", &allowed(&server), body.as_bytes());
        assert_eq!(code, 400, "{body}: {reply}");
    }
    unharmed(&server);
}

/// Bodies that do not end must block neither the page nor other actions.
#[test]
fn slow_bodies_end() {
    let server = guarded();
    let address = server.admin_address().unwrap();
    let head = format!("POST /v1/delete HTTP/1.1\r\nHost: {address}\r\n{}", allowed(&server));
    let mut slow = Vec::new();
    for rest in ["Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"] {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(format!("{head}{rest}").as_bytes()).unwrap();
        slow.push(client);
    }
    assert_eq!(get(&server, "/livez").0, 200);
    let (code, ..) = post(&server, "/v1/item", &allowed(&server), br#"{"key":"none"}"#);
    assert_eq!(code, 200);
    for mut client in slow {
        let mut reply = [0; 12];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"HTTP/1.1 408");
    }
    // A body in chunks without a last chunk must be refused once it is longer than the limit.
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
    let endless = format!("{head}Transfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(64));
    assert_eq!(reply_to(address, endless.as_bytes()).0, 413);
}
