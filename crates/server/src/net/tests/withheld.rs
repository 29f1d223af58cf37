//! Tests with a service that withholds replies. The event loops must keep reading, and must call
//! the service again after a wake-up.

use std::net::Shutdown;

use super::*;

#[test]
fn input_is_read_while_answers_are_withheld() {
    on_both(|options| {
        let server = Server::start(options);
        let mut late = server.connect();
        let mut other = server.connect();
        for n in 1..=100 {
            late.write_all(format!("late {n}\n").as_bytes()).unwrap();
            server.until_withheld(n);
        }
        ping(&mut other, "not late\n");
        // The client may have read the bytes before the worker counts the last write.
        until("the write is counted", || server.sum(|c| &c.writes) > 0);
        assert_eq!(server.sum(|c| &c.writes), 1);
        server.open_valve();
        let answers: String = (1..=100).map(|n| format!("late {n}\n")).collect();
        assert_eq!(read_exactly(&mut late, answers.len()), answers.as_bytes());
        ping(&mut late, "and so on\n");
        server.stop();
    });
}

#[test]
fn half_closed_clients_get_withheld_answers() {
    on_both(|options| {
        let server = Server::start(options);
        let mut ended = server.connect();
        ended.write_all(b"late\n").unwrap();
        server.until_withheld(1);
        ended.shutdown(Shutdown::Write).unwrap();
        let mut both = server.connect();
        both.write_all(b"late\nand this").unwrap();
        both.shutdown(Shutdown::Write).unwrap();
        server.until_withheld(2);
        let gone = server.connect();
        (&gone).write_all(b"late\n").unwrap();
        server.until_withheld(3);
        drop(gone);
        server.open_valve();
        assert_eq!(read_to_end(&mut ended), b"late\n");
        assert_eq!(read_to_end(&mut both), b"late\n");
        until("all are gone", || server.sum(|c| &c.current_connections) == 0);
        server.stop();
    });
}

#[test]
fn a_connection_with_withheld_answers_is_not_idle() {
    on_both(|mut options| {
        options.idle_timeout = Some(Duration::from_secs(1));
        let server = Server::start(options);
        let mut late = server.connect();
        late.write_all(b"late\n").unwrap();
        server.until_withheld(1);
        let mut idle = server.connect();
        ping(&mut idle, "idle\n");
        assert_eq!(read_to_end(&mut idle), b"");
        server.control.shut_down(PATIENCE);
        until("new connections are refused", || TcpStream::connect(server.address).is_err());
        assert_eq!(server.sum(|c| &c.current_connections), 1);
        server.open_valve();
        assert_eq!(read_to_end(&mut late), b"late\n");
        server.join();
    });
}

#[test]
fn one_event_releases_the_answers_of_many_connections() {
    on_both(|mut options| {
        options.max_connections = 400;
        let server = Server::with_workers(options, 2);
        let mut clients: Vec<TcpStream> = (0..300).map(|_| server.connect()).collect();
        for round in 1..=3 {
            server.valve.open.store(0, SeqCst);
            for client in &mut clients {
                client.write_all(b"late\n").unwrap();
            }
            server.until_withheld(300 * round);
            // A wake-up before the valve is open must not release any answer.
            server.wakers.iter().for_each(std::task::Waker::wake_by_ref);
            server.open_valve();
            for client in &mut clients {
                assert_eq!(read_exactly(client, 5), b"late\n");
            }
        }
        server.stop();
    });
}
