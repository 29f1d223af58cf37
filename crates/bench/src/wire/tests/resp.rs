use super::*;

#[test]
fn requests() {
    let mut buffer = Vec::new();
    Resp.push(Verb::Get, b"fig", b"", &mut buffer);
    Resp.push(Verb::Set, b"fig", b"\r\nsweet", &mut buffer);
    Resp.push(Verb::Set, b"fig", b"", &mut buffer);
    Resp.push(Verb::Incr, b"visits", b"", &mut buffer);
    Resp.push(Verb::SetCounter, b"visits", b"", &mut buffer);
    let expected = "*2\r\n$3\r\nGET\r\n$3\r\nfig\r\n\
        *3\r\n$3\r\nSET\r\n$3\r\nfig\r\n$7\r\n\r\nsweet\r\n\
        *3\r\n$3\r\nSET\r\n$3\r\nfig\r\n$0\r\n\r\n\
        *2\r\n$4\r\nINCR\r\n$6\r\nvisits\r\n\
        *3\r\n$3\r\nSET\r\n$6\r\nvisits\r\n$1\r\n0\r\n";
    assert_eq!(String::from_utf8(buffer).unwrap(), expected);
}

#[test]
fn a_limit_is_one_call_of_the_script() {
    let mut buffer = Vec::new();
    Resp.push(Verb::Limit, b"visits", b"5 60 0", &mut buffer);
    let text = String::from_utf8(buffer).unwrap();
    let (opening, rest) = text.split_once("$40\r\n").unwrap();
    assert_eq!(opening, "*7\r\n$7\r\nEVALSHA\r\n");
    let arguments = "\r\n$1\r\n1\r\n$6\r\nvisits\r\n$1\r\n5\r\n$2\r\n60\r\n$1\r\n0\r\n";
    assert_eq!(&rest[40..], arguments);
}

#[test]
fn replies_cut_anywhere() {
    use Verb::{Get, Incr, Set, SetCounter};
    let stream = b"$-1\r\n+OK\r\n$6\r\n\r\n$1\r\n\r\n$0\r\n\r\n:18446744073709551615\r\n\
        -OOM command not allowed\r\n-ERR value is not an integer\r\n+OK\r\n$12\r\nhello, world\r\n";
    let verbs = [Get, Set, Get, Get, Incr, Set, Incr, SetCounter, Get];
    let expected = [
        Answer::Value(None),
        Answer::Stored,
        value(b"\r\n$1\r\n"),
        value(b""),
        Answer::Number(u64::MAX),
        failed("OOM command not allowed"),
        failed("ERR value is not an integer"),
        Answer::Stored,
        value(b"hello, world"),
    ];
    check_stream(&Resp, &verbs, stream, &expected);
}

#[test]
fn broken_replies() {
    for text in [
        "$3\r\nabcd\r\n",
        "$3\r\nabc\n\n",
        "$x\r\n",
        "$\r\n",
        "$-2\r\n",
        "$536870913\r\n",
        "$99999999999999999999\r\n",
        "+OK\r\n",
        ":1\r\n",
        "*1\r\n",
        "\r\n",
        "$1\n",
    ] {
        check_broken(&Resp, Some(Verb::Get), text.as_bytes());
    }
    for text in ["$1\r\n1\r\n", ":-1\r\n", ":18446744073709551616\r\n", ":\r\n", "+QUEUED\r\n"] {
        check_broken(&Resp, Some(Verb::Incr), text.as_bytes());
    }
    check_broken(&Resp, Some(Verb::Set), b"$-1\r\n");
    check_broken(&Resp, None, b"+OK\r\n");
    check_broken(&Resp, None, b"-ERR max number of clients reached\r\n");
    check_broken(&Resp, Some(Verb::Get), &[b'x'; 64 * 1024 + 1]);
}
