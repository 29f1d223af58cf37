# frozen_string_literal: true

# The adapter with the real library against a real server: $SERVER, or target/release/larder.

require 'logger'
require 'minitest/autorun'
require 'rack'
require 'rack/attack/larder'
require 'socket'
require 'stringio'
require 'tmpdir'

SERVER = ENV.fetch('SERVER', File.expand_path('../../../target/release/larder', __dir__))
PROCESSES = 4
THREADS = 4
SLACK = 1.0
# A busy machine must not fail tests that are not about time limits, so their time limits are long.
PATIENT = { timeout: 20, connect_timeout: 20, fail: :closed }.freeze

# Starts real servers, and servers whose answers the test chooses.
module Servers
  module_function

  def free_port
    TCPServer.open('127.0.0.1', 0) { |server| server.addr[1] }
  end

  # Runs a server, and waits until it accepts connections.
  def started(*command, port)
    pid = spawn(*command, out: File::NULL, err: File::NULL)
    begin
      deadline = now + 20
      begin
        TCPSocket.new('127.0.0.1', port).close
      rescue Errno::ECONNREFUSED
        raise "#{command} does not serve" if now > deadline || Process.wait(pid, Process::WNOHANG)

        sleep 0.01
        retry
      end
      yield "127.0.0.1:#{port}"
    ensure
      Process.kill(:TERM, pid)
      Process.wait(pid)
    end
  end

  def larder(port = free_port, &block)
    started(SERVER, 'serve', '--admin', 'off', '-p', port.to_s, port, &block)
  end

  # Runs a server that answers each line with `answer.call(line)`, or never if that is nil.
  def played(answer)
    listener = TCPServer.new('127.0.0.1', 0)
    thread = Thread.new do
      loop do
        Thread.new(listener.accept) do |connection|
          while (line = connection.gets)
            reply = answer.call(line)
            connection.write(reply) if reply
          end
        rescue SystemCallError, IOError
          nil
        end
      end
    end
    yield "127.0.0.1:#{listener.addr[1]}"
  ensure
    thread&.kill
    listener&.close
  end

  # Runs a server that passes single-line requests on to the one at `address`, and keeps them in `lines`.
  def between(address, lines, &block)
    host, port = address.split(':')
    answer = lambda do |line|
      lines << line
      behind = Thread.current[:behind] ||= TCPSocket.new(host, port)
      behind.write(line)
      reply = behind.gets
      reply.start_with?('VA ') ? reply + behind.gets : reply
    end
    played(answer, &block)
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end

# One server for all tests that need no separate server.
port = Servers.free_port
SHARED = "127.0.0.1:#{port}"
shared_up = Queue.new
shared_done = Queue.new
shared = Thread.new do
  Servers.larder(port) do
    shared_up << true
    shared_done.pop
  end
end
shared.report_on_exception = true
Minitest.after_run do
  shared_done << true
  shared.join
end
shared_up.pop

class LarderTest < Minitest::Test
  include Servers

  ALGORITHMS = Rack::Attack::Larder::ALGORITHMS.keys

  def setup
    Rack::Attack.clear_configuration
    Rack::Attack.cache.store = store
  end

  def store(address = SHARED, **options)
    Rack::Attack::Larder::Store.new(address, **PATIENT, **options)
  end

  def app
    @app ||= Rack::MockRequest.new(Rack::Attack.new(->(_env) { [200, {}, ['ok']] }))
  end

  def visit(user = unique)
    app.get("/?user=#{user}")
  end

  def statuses(count, user = unique)
    Array.new(count) { visit(user).status }
  end

  def unique
    @unique ||= "#{name}-#{Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)}"
  end

  def throttle(algorithm, limit: 5, period: 86_400, **options)
    by = ->(request) { request.params['user'] }
    return Rack::Attack.throttle('user', limit: limit, period: period, &by) if algorithm == :plain

    Rack::Attack::Larder.throttle('user', limit: limit, period: period, algorithm: algorithm, **options, &by)
  end

  # Returns the result of a block that ran within one window. The windows of Rack::Attack itself
  # follow the clock, so a run across the end of a window is repeated.
  def within_a_window(period)
    loop do
      window = Time.now.to_i / period
      result = yield
      return result if Time.now.to_i / period == window

      @unique = nil
    end
  end

  # Runs the block in all threads of all processes at once. Returns the times at which each request that
  # passed was sent and answered.
  def storm
    unique # Called before the fork, so that all processes use the same user.
    go, start = IO.pipe
    readers = Array.new(PROCESSES) do
      reader, writer = IO.pipe
      pid = fork do
        start.close
        go.read
        passed = Array.new(THREADS) { |number| Thread.new { yield(number) } }.flat_map(&:value)
        writer.write(Marshal.dump(passed))
        writer.close
        exit!(true)
      end
      writer.close
      [pid, reader]
    end
    go.close
    start.close
    readers.flat_map do |pid, reader|
      data = reader.read
      assert Process.wait2(pid)[1].success?
      Marshal.load(data) # rubocop:disable Security/MarshalLoad -- the children of this test wrote it
    end.sort
  end

  def visits(go_on)
    passed = []
    count = 0
    while go_on.call(count)
      count += 1
      sent = now
      passed << [sent, now] if visit.status == 200
    end
    passed
  end

  [:plain, *ALGORITHMS].each do |algorithm|
    define_method("test_exactly_the_limit_passes_#{algorithm}") do
      throttle(algorithm, limit: 100)
      # The parent now has an open connection, which its children must not use.
      assert_equal 200, visit("#{unique}-parent").status
      passed = within_a_window(86_400) { storm { visits(->(count) { count < 25 }) } }
      assert_equal 100, passed.size
    end

    define_method("test_one_round_trip_#{algorithm}") do
      lines = []
      between(SHARED, lines) do |proxy|
        Rack::Attack.cache.store = store(proxy)
        throttle(algorithm, limit: 3)
        assert_equal [200, 200, 200, 429, 429], within_a_window(86_400) { lines.clear && statuses(5) }
        assert_equal 5, lines.size
      end
    end

    define_method("test_windows_begin_anew_#{algorithm}") do
      throttle(algorithm, limit: 3, period: 1)
      assert_includes statuses(7), 429
      deadline = now + 10
      until visit.status == 200
        assert_operator now, :<, deadline
        sleep 0.05
      end
    end

    define_method("test_the_longest_periods_#{algorithm}") do
      throttle(algorithm, limit: 2, period: 400 * 86_400)
      assert_equal [200, 200, 429], within_a_window(400 * 86_400) { statuses(3) }
    end
  end

  # Returns the largest number of requests that certainly passed within `seconds`. Such a request was sent
  # after the begin of that time and answered before its end.
  def most_within(passed, seconds)
    passed.map { |start, _| passed.count { |sent, told| sent >= start && told <= start + seconds } }.max
  end

  ALGORITHMS.each do |algorithm|
    define_method("test_bounds_hold_while_windows_pass_#{algorithm}") do
      throttle(algorithm, limit: 40, period: 1, **(algorithm == :gcra ? { burst: 5 } : {}))
      deadline = now + 2.5
      passed = storm { visits(->(_count) { now < deadline }) }
      assert_operator passed.size, :>, 40, 'later windows admit'
      if algorithm == :gcra
        [0.1, 0.5, 1, 2].each { |time| assert_operator most_within(passed, time), :<=, 5 + (time * 40).floor }
      else
        assert_operator most_within(passed, 1), :<, 80
      end
      windows = (passed.last[1] - passed.first[0]).floor + 1
      assert_operator passed.size, :<=, (40 * windows) + (algorithm == :sliding ? 40 : 0)
    end

    define_method("test_data_for_responders_#{algorithm}") do
      throttle(algorithm, limit: 2, period: 10)
      seen = Array.new(3) do
        env = Rack::MockRequest.env_for("/?user=#{unique}")
        Rack::Attack.new(->(_env) { [200, {}, []] }).call(env)
        env
      end
      data = seen.map { |env| env['rack.attack.throttle_data']['user'] }
      counts = data.map { |each| each.values_at(:count, :remaining) }
      assert_equal [[1, 1], [2, 0], [3, 0]], counts
      assert_equal [0, 0], [data[0][:retry_after], data[1][:retry_after]]
      assert_includes 1..15, data[2][:retry_after]
      assert_includes 1..20, data[2][:reset_after]
      assert_equal({ limit: 2, period: 10, discriminator: unique.downcase },
                   data[2].slice(:limit, :period, :discriminator))
      assert_nil seen[1]['rack.attack.matched']
      matched = %w[matched match_type match_data match_discriminator].map { |key| seen[2]["rack.attack.#{key}"] }
      assert_equal ['user', :throttle, data[2], unique.downcase], matched
    end

    define_method("test_looking_and_costs_#{algorithm}") do
      look = -> { store.take(unique, algorithm, 5, 60, cost: 0) }
      3.times { assert_equal [true, 5], look.call.to_a.first(2) }
      refute store.take(unique, algorithm, 5, 60, cost: 6).allowed
      assert store.take(unique, algorithm, 5, 60, cost: 3).allowed
      refute store.take(unique, algorithm, 5, 60, cost: 3).allowed
      assert_equal 2, look.call.remaining
      store.delete(unique)
      assert_equal 5, look.call.remaining
    end
  end

  def test_the_burst_of_gcra
    throttle(:gcra, limit: 100, burst: 3)
    assert_equal [200, 200, 200, 429], statuses(4)
  end

  def test_limits_and_periods_per_request
    limit = ->(request) { request.params['limit'].to_i }
    Rack::Attack::Larder.throttle('user', limit: limit, period: ->(_) { 3600 }) { |request| request.params['user'] }
    one, two = [1, 2].map { |most| Array.new(3) { app.get("/?user=#{unique}#{most}&limit=#{most}").status } }
    assert_equal [[200, 429, 429], [200, 200, 429]], [one, two]
  end

  def test_the_responder
    Rack::Attack.throttled_responder = Rack::Attack::Larder::RESPONDER
    throttle(:fixed, limit: 1, period: 100)
    visit
    answer = visit
    assert_equal 429, answer.status
    assert_includes 98..100, Integer(answer['retry-after'])
    Rack::Attack.clear_configuration
    Rack::Attack.throttled_responder = Rack::Attack::Larder::RESPONDER
    throttle(:plain, limit: 0, period: 100)
    assert_includes 1..100, Integer(visit['retry-after'])
  end

  def test_a_throttle_with_a_store_of_its_own
    Rack::Attack.cache.store = Object.new
    throttle(:fixed, limit: 1, store: store)
    assert_equal [200, 429], statuses(2)
  end

  def test_the_store_serves_the_rest_of_rack_attack
    cache = Rack::Attack.cache
    assert_nil cache.read(unique)
    cache.write(unique, 'text', 60)
    assert_equal 'text', cache.read(unique)
    cache.delete(unique)
    assert_nil cache.read(unique)
    within_a_window(3600) do
      assert_equal [1, 2], Array.new(2) { cache.count(unique, 3600) }
      cache.reset_count(unique, 3600)
      assert_equal 1, cache.count(unique, 3600)
    end
    options = { maxretry: 2, findtime: 3600, bantime: 3600 }
    banned = ->(seen) { Rack::Attack::Fail2Ban.filter(unique, options) { seen } || false }
    assert_equal [false, true, true, true], within_a_window(3600) { [false, true, true, false].map(&banned) }
    Rack::Attack::Fail2Ban.reset(unique, findtime: 3600)
    refute banned.call(false)
    assert_raises(Rack::Attack::IncompatibleStoreError) { Rack::Attack.reset! }
  end

  KEYS = ['a b', "a\r\nflush_all\r\n", "a\0b", "a\x7fb", 'ключ☃', '', 'k' * 250, 'k' * 251, 'k ' * 90, 'k' * 100_000,
          "\xff\xfe".b, "\xff ".b].freeze

  def test_any_key
    KEYS.each do |key|
      [key, "#{key}x"].each do |each|
        store.write(each, "x\r\nversion", expires_in: 60)
        assert_equal "x\r\nversion", store.read(each), each.inspect
        store.delete(each)
        assert_equal [true, false], Array.new(2) { store.take(each, :gcra, 1, 3600).allowed }, each.inspect
        assert_equal 2, store.increment(each, 1, expires_in: 60), each.inspect
      end
      store.delete(key)
      assert store.take(key, :gcra, 1, 3600).allowed
      refute store.take("#{key}x", :gcra, 1, 3600).allowed
    end
  end

  # The server is away.

  def away(kind, &block)
    case kind
    when :absent then yield "127.0.0.1:#{free_port}"
    when :silent then TCPServer.open('127.0.0.1', 0) { |listener| yield "127.0.0.1:#{listener.addr[1]}" }
    when :broken then played(->(_line) { "SERVER_ERROR out of memory\r\n" }, &block)
    end
  end

  %i[absent silent broken].product(%i[open closed], [:plain, *ALGORITHMS]) do |kind, fail, algorithm|
    define_method("test_away_#{kind}_#{fail}_#{algorithm}") do
      log = StringIO.new
      throttle(algorithm)
      away(kind) do |address|
        Rack::Attack.cache.store =
          Rack::Attack::Larder::Store.new(address, fail: fail, backoff: 30, logger: Logger.new(log))
        [0.2 + SLACK, SLACK, SLACK].each do |limit|
          began = now
          assert_equal fail == :open ? 200 : 429, visit.status
          assert_operator now - began, :<, limit
        end
      end
      # There is at most one warning a second. The loop takes less than a second, or little more on
      # a busy machine.
      assert_includes 1..3, log.string.lines.size
      assert_includes log.string, fail == :open ? 'requests pass' : 'requests are refused'
    end
  end

  def test_a_refused_connection_is_no_success
    played(->(_line) { "ERROR Too many open connections\r\n" }) do |address|
      { open: 200, closed: 429 }.each do |fail, status|
        Rack::Attack.cache.store = store(address, fail: fail, logger: nil)
        [:plain, *ALGORITHMS].each do |algorithm|
          throttle(algorithm)
          assert_equal status, visit.status
        end
      end
    end
  end

  def test_a_reply_of_another_protocol_is_no_success
    ["\r\n", "END\r\n", "HTTP/1.1 400 Bad Request\r\n"].each do |reply|
      played(->(_line) { reply }) do |address|
        assert_equal Rack::Attack::Larder::REFUSED, store(address, logger: nil).increment('k')
      end
    end
  end

  BAN = { maxretry: 2, findtime: 3600, bantime: 3600 }.freeze

  %i[absent silent broken].product(%i[open closed]) do |kind, fail|
    define_method("test_bans_while_away_#{kind}_#{fail}") do
      away(kind) do |address|
        Rack::Attack.cache.store = store(address, fail: fail, timeout: 0.1, logger: nil)
        [Rack::Attack::Fail2Ban, Rack::Attack::Allow2Ban].each do |bans|
          assert_equal fail == :closed, bans.filter(unique, BAN) { false } || false
        end
      end
    end
  end

  def test_one_error_of_the_server_bans_no_client
    [Rack::Attack::Fail2Ban, Rack::Attack::Allow2Ban].each do |bans|
      commands = []
      answer = lambda do |line|
        commands << line[0, 2]
        { 'mg' => "EN\r\n", 'ma' => "SERVER_ERROR out of memory\r\n" }.fetch(commands.last, "HD\r\n")
      end
      played(answer) do |address|
        Rack::Attack.cache.store = store(address, logger: nil)
        assert_equal bans == Rack::Attack::Fail2Ban, bans.filter(unique, BAN) { true }
        assert_equal %w[mg ma], commands, 'no ban is written'
      end
    end
  end

  def test_a_discriminator_that_looks_like_a_ban_is_refused
    Rack::Attack.cache.store = store("127.0.0.1:#{free_port}", logger: nil)
    throttle(:plain)
    assert_equal 429, visit('rack::attack:1:fail2ban:count:x').status
    assert_equal Rack::Attack::Larder::REFUSED, Rack::Attack.cache.store.increment("\xff")
  end

  def test_waiting_is_short_and_then_none
    away(:silent) do |address|
      store = store(address, fail: :open, timeout: 0.3, backoff: 30, logger: nil)
      began = now
      assert store.take('k', :fixed, 1, 60).allowed
      assert_includes 0.3..(0.3 + SLACK), now - began
      began = now
      1000.times { assert store.take('k', :fixed, 1, 60).allowed }
      assert_operator now - began, :<, 3, 'no attempt during the back-off'
    end
  end

  def test_warnings_go_to_standard_error
    # Rack has its own class Logger. The store must use Ruby's class.
    assert Rack::Logger
    _, warning = capture_io { Rack::Attack::Larder::Store.new("127.0.0.1:#{free_port}").read('k') }
    assert_match(/WARN.*Larder is away, requests pass: Errno::ECONNREFUSED/, warning)
  end

  def test_the_server_returns
    port = free_port
    store = store("127.0.0.1:#{port}", backoff: 0.05, logger: nil)
    refute store.take(unique, :fixed, 5, 60).allowed
    larder(port) do
      deadline = now + 10
      until store.take(unique, :fixed, 5, 60).allowed
        assert_operator now, :<, deadline
        sleep 0.01
      end
    end
    # The server has closed the store's idle connection. The next request must not fail because of that.
    larder(port) { assert store.take(unique, :fixed, 5, 60).allowed }
  end

  def test_a_late_reply_answers_no_other_request
    asked = 0
    go = Queue.new
    answer = lambda do |_line|
      next "HD r7 t1 w0\r\n" if (asked += 1) > 1

      go.pop
      "NS r0 t1 w1\r\n"
    end
    played(answer) do |address|
      store = store(address, fail: :open, timeout: 0.1, backoff: 0, logger: nil)
      failed = [true, 9, 0, 0]
      assert_equal failed, store.take('k', :fixed, 9, 60).to_a
      # The first connection still waits for its reply, so another one must serve this request.
      deadline = now + 10
      while (told = store.take('k', :fixed, 9, 60).to_a) == failed
        assert_operator now, :<, deadline
      end
      assert_equal [true, 7, 0, 1], told
      go << true
      assert_includes [told, failed], store.take('k', :fixed, 9, 60).to_a
    end
  end

  def test_a_thread_that_is_interrupted_leaves_no_connection_behind
    asked = 0
    played(->(_line) { "HD r7 t1 w0\r\n" if (asked += 1) > 1 }) do |address|
      store = store(address)
      thread = Thread.new { store.take('k', :fixed, 9, 60) }
      sleep 0.001 until asked == 1
      thread.kill.join
      assert_equal 7, store.take('k', :fixed, 9, 60).remaining
    end
  end

  # Servers without limits, and what is refused.

  def assert_not_larder(address)
    ALGORITHMS.each do |algorithm|
      error = assert_raises(Rack::Attack::Larder::NotLarder) { store(address).take(unique, algorithm, 5, 60) }
      assert_includes error.message, 'it is not Larder, or too old'
    end
  end

  def test_a_server_without_limits
    played(->(_line) { "CLIENT_ERROR invalid or duplicate flag\r\n" }) { |address| assert_not_larder(address) }
    played(->(_line) { "ERROR\r\n" }) { |address| assert_not_larder(address) }
  end

  def test_memcached
    skip 'memcached is not installed' unless system('memcached', '-V', out: File::NULL)
    port = free_port
    as_user = Process.uid.zero? ? %w[-u nobody] : []
    command = ['memcached', '-l', '127.0.0.1', '-p', port.to_s, '-U', '0', *as_user]
    started(*command, port) { |address| assert_not_larder(address) }
  end

  def test_wrong_options
    assert_raises(ArgumentError) { Rack::Attack::Larder::Store.new(fail: :ajar) }
    assert_raises(ArgumentError) { throttle(:leaky) }
    assert_raises(ArgumentError) { throttle(:sliding, burst: 5) }
    assert_raises(ArgumentError) { store.take(unique, :fixed, 5, 0) }
    Rack::Attack.cache.store = Object.new
    throttle(:sliding)
    assert_raises(Rack::Attack::MisconfiguredStoreError) { visit }
  end

  def test_a_unix_socket
    Dir.mktmpdir do |directory|
      path = "#{directory}/larder.sock"
      pid = spawn(SERVER, 'serve', '--admin', 'off', '-s', path, err: File::NULL)
      begin
        deadline = now + 20
        store = store(path, backoff: 0, logger: nil)
        until store.take('up', :fixed, 1 << 40, 60).allowed
          assert_operator now, :<, deadline
          sleep 0.01
        end
        assert_equal [true, true, false], Array.new(3) { store.take(unique, :gcra, 2, 3600).allowed }
      ensure
        Process.kill(:TERM, pid)
        Process.wait(pid)
      end
    end
  end

  def test_a_unix_socket_with_a_full_queue
    Dir.mktmpdir do |directory|
      server = UNIXServer.new("#{directory}/full.sock")
      server.listen(0)
      waiting = []
      assert_raises(Errno::EAGAIN) do
        loop { (waiting << Socket.new(:UNIX, :STREAM)).last.connect_nonblock(Socket.sockaddr_un(server.path)) }
      end
      began = now
      assert store(server.path, fail: :open, logger: nil).take('k', :fixed, 1, 60).allowed
      assert_operator now - began, :<, SLACK
    ensure
      [server, *waiting].each(&:close)
    end
  end

  def test_the_example
    ENV['LARDER'] = SHARED
    store.delete('rack::attack:logins:127.0.0.9')
    built = Rack::Builder.parse_file(File.expand_path('../example/config.ru', __dir__))
    example = Rack::MockRequest.new(Array(built).first)
    logins = Array.new(6) { example.get('/login', 'REMOTE_ADDR' => '127.0.0.9') }
    assert_equal ([200] * 5) + [429], logins.map(&:status)
    assert_operator Integer(logins.last['retry-after']), :>, 0
    assert_equal 200, example.get('/api/1', 'REMOTE_ADDR' => '127.0.0.9').status
  ensure
    ENV.delete('LARDER')
  end
end
