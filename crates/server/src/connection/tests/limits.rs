//! Tests of rate limits whose parameters are flags of the request, not a policy.

use super::{Client, worker};

#[test]
fn a_budget_makes_ma_refuse_instead_of_overshooting() {
    let mut worker = worker();
    let mut client = Client::new(&mut worker);
    for (request, reply) in [
        ("ma f B3 N60 r t w", "HD r2 t60 w0"),
        ("ma f B3 N60 D2 t w r Oab k v", "VA 1 t60 w0 r0 Oab kf\r\n3"),
        ("ma f B3 N60 r t w v", "NS r0 t60 w60000"),
        // `D0` takes no units, so it succeeds even if the budget is used up. A changed budget must
        // take effect at once.
        ("ma f B3 N60 D0 r w", "HD r0 w0"),
        ("ma f B4 N60 D0 r", "HD r1"),
        ("ma f B2 N60 r", "NS r0"),
        ("ma f B3 D4 N60 w", "NS w-1"),
        ("mg f v t", "VA 1 t60\r\n3"),
        ("incr f 4", "7"),
        ("ma f MD D5", "HD"),
        ("ma f B3 N60 r", "HD r0"),
        ("ma f B3 N60 T100 t r", "NS t60 r0"),
        ("ma f B9 N60 T100 t r", "HD t100 r5"),
        ("md f", "HD"),
        ("ma f MD", "NF"),
        ("ma f B3 C7", "NF"),
        ("ma none B3 N60 D0 r t w", "HD r3 t0 w0"),
        ("mg none v", "EN"),
        // `e` has a fixed window without end, `m` a fixed window in milliseconds, and `s` a sliding
        // window.
        ("ma e B1 t w", "HD t-1 w0"),
        ("ma e B1 t w", "NS t-1 w-1"),
        ("ma m B1 N1500ms t w", "HD t2 w0"),
        ("ma m B1 N1500ms t w", "NS t2 w1500"),
        ("ma s MW B2 N10 r t", "HD r1 t20"),
        // GCRA (`MG`) with a budget of 10 units a second gives one unit every 100 ms. `G3` allows
        // bursts of up to 3 units.
        ("ma g MG B10 N1 G3 D2 r t w", "HD r1 t1 w0"),
        ("ma g MG B10 N1 G3 D2 r t w", "NS r1 t1 w100"),
        ("ma g MG B10 N1 G3 D4 w", "NS w-1"),
        // A limit on an item that holds a plain number counts that number as used units.
        ("set n 0 30 1\r\n2", "STORED"),
        ("ma n B3 N60 r t", "HD r0 t30"),
        ("ma n B3 N60 r t", "NS r0 t30"),
        ("set n 0 0 4\r\nword", "STORED"),
        ("ma n B3", "CLIENT_ERROR cannot increment or decrement non-numeric value"),
        ("ma n MW B3", "CLIENT_ERROR MW and MG need a window (N)"),
        ("ma f r", "CLIENT_ERROR invalid or duplicate flag"),
        // A refused request adopts a limit by which it passes sooner. 50 used units of a window
        // without end become the level of a bucket, of which 31 units must leak.
        ("ma a B100 D50 r t", "HD r50 t-1"),
        ("ma a MG B100 N60 G20 r w", "NS r0 w18600"),
        ("ma a MG B100 N60 G20 D0 t", "HD t30"),
        // The wrong cas id, with every kind of limit.
        ("ma n2 B3 N60", "HD"),
        ("ma n2 B3 N60 C99999", "EX"),
        ("ma n2 MW B3 N60 C99999", "EX"),
        ("ma n2 MG B3 N60 C99999", "EX"),
        ("ma n2 B3 N60 r", "HD r1"),
        // Other commands move the end of a window or take all used units away.
        ("touch n2 10", "TOUCHED"),
        ("mg n2 v t", "VA 1 t10\r\n2"),
        ("gat 20 n2", "VALUE n2 0 1\r\n2\r\nEND"),
        ("mg n2 T30 t", "HD t30"),
        ("ma n2 B3 N60 D0 T0 t r", "HD t30 r1"),
        ("touch n2 0", "TOUCHED"),
        ("ma n2 B3 N60 D2 r t w", "NS r1 t-1 w-1"),
        ("touch n2 -1", "TOUCHED"),
        ("ma n2 B3 N60 r t", "HD r2 t60"),
        ("ma w MW B3 N60 r", "HD r2"),
        ("touch w 10", "TOUCHED"),
        ("mg w t", "HD t70"),
        ("touch w -1", "TOUCHED"),
        ("ma w MW B3 N60 r", "HD r2"),
        ("touch g -1", "TOUCHED"),
        ("ma g MG B10 N1 G3 r", "HD r2"),
    ] {
        let got = client.ask(format!("{request}\r\n").as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), format!("{reply}\r\n"), "{request}");
    }
    let got = client.ask(b"ma q B2 q\r\nma q B2 q v\r\nma q B2 q k\r\nmn\r\n");
    assert_eq!(String::from_utf8_lossy(&got), "NS kq\r\nMN\r\n");
    // `q` hides `HD` and `VA`, but neither `NF` nor `EX`.
    let got = client.ask(b"ma absent B2 C7 q k\r\nma q B2 C99999 q k\r\nma q MD D9 q\r\nmn\r\n");
    assert_eq!(String::from_utf8_lossy(&got), "NF kabsent\r\nEX kq\r\nMN\r\n");
}
