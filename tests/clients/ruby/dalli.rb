# frozen_string_literal: true

# Uses Dalli as an application does: every verb, through its public API.
# usage: ruby dalli.rb SERVER (host:port or the path of a Unix socket)

require 'dalli'

Dalli.logger.level = Logger::ERROR
@address = ARGV.fetch(0)
@failed = false

def check(name)
  seen = yield
  return puts("ok #{name}") if seen == true

  @failed = true
  puts "FAIL #{name}: saw #{seen.inspect}"
rescue StandardError => e
  @failed = true
  puts "FAIL #{name}: #{e.class}: #{e.message}"
end

# Returns true if both values are equal, and the unexpected value otherwise.
def is(got, wanted)
  got == wanted || got
end

# Returns true for nil, false or 0, with which releases of Dalli report a missing key. Returns any other value.
def none(got)
  [nil, false, 0].include?(got) || got
end

def exercise(label, options)
  cache = Dalli::Client.new(@address, options)
  cache.flush

  check("#{label} version is 1.6.x") { cache.version.values.first.start_with?('1.6.') }
  check("#{label} alive") { cache.alive!.nil? || true }
  check("#{label} get of a missing key") { is(cache.get('missing'), nil) }
  check("#{label} set and get") { cache.set('a', { 'list' => [1, :two] }) && is(cache.get('a'), { 'list' => [1, :two] }) }
  check("#{label} get of nil") { cache.set('nil', nil) && is(cache.get('nil'), nil) }
  check("#{label} empty value") { cache.set('empty', '', 0, raw: true) && is(cache.get('empty', raw: true), '') }
  check("#{label} unicode key") { cache.set('ключ☃', 'v') && is(cache.get('ключ☃'), 'v') }
  check("#{label} long key") { cache.set('k' * 300, 'v') && is(cache.get('k' * 300), 'v') }
  check("#{label} compressed value") do
    text = 'larder ' * 20_000
    cache.set('big', text, 0, compress: true) && is(cache.get('big'), text)
  end
  check("#{label} value over the limit") do
    noise = Random.new(7).bytes(2 << 20)
    begin
      cache.set('huge', noise, 0, raw: true) ? 'stored' : true
    rescue Dalli::ValueOverMaxSize
      true
    end
  end
  check("#{label} the connection is in step after it") { cache.set('b', 1) && is(cache.get('b'), 1) }

  check("#{label} add") { cache.add('n', 'first') && is(cache.get('n'), 'first') }
  check("#{label} add of a present key") { none(cache.add('n', 'second')) && is(cache.get('n'), 'first') }
  check("#{label} replace") { cache.replace('n', 'third') && is(cache.get('n'), 'third') }
  check("#{label} replace of a missing key") { none(cache.replace('missing', 1)) }
  check("#{label} delete") { cache.delete('n') && is(cache.get('n'), nil) }
  check("#{label} delete of a missing key") { none(cache.delete('n')) }
  check("#{label} append and prepend") do
    cache.set('s', 'b', 0, raw: true)
    cache.append('s', 'c') && cache.prepend('s', 'a') && is(cache.get('s', raw: true), 'abc')
  end
  check("#{label} append to a missing key") { none(cache.append('missing', 'x')) }

  check("#{label} get_multi") do
    wanted = (0...500).to_h { |i| ["multi#{i}", i] }
    cache.multi { wanted.each { |key, value| cache.set(key, value) } }
    is(cache.get_multi(wanted.keys + %w[missing1 missing2]), wanted)
  end
  check("#{label} quiet deletes") do
    cache.multi { 500.times { |i| cache.delete("multi#{i}") } }
    is(cache.get_multi((0...500).map { |i| "multi#{i}" }), {})
  end
  check("#{label} get_multi_cas") do
    cache.set('c1', 'x')
    seen = cache.get_multi_cas('c1', 'missing')
    seen.keys == ['c1'] && seen['c1'][0] == 'x' && seen['c1'][1].positive? || seen
  end
  check("#{label} cas") do
    cache.set('cas', 1)
    cache.cas('cas') { |value| value + 1 } && is(cache.get('cas'), 2)
  end
  check("#{label} cas that lost the race") do
    lost = cache.cas('cas') { |value| cache.set('cas', 10) && value }
    is([lost, cache.get('cas')], [false, 10])
  end
  check("#{label} cas of a missing key") { is(cache.cas('missing') { |_| 1 }, nil) }
  check("#{label} set_cas with a stale id") do
    _, id = cache.get_cas('cas')
    cache.set('cas', 11) && is(cache.set_cas('cas', 12, id), false)
  end
  check("#{label} replace_cas and delete_cas") do
    _, id = cache.get_cas('cas')
    id = cache.replace_cas('cas', 13, id)
    id.is_a?(Integer) && cache.delete_cas('cas', id) && is(cache.get('cas'), nil)
  end

  check("#{label} incr without a default") { is(cache.incr('none'), nil) }
  check("#{label} incr creates with default and ttl") { is([cache.incr('hits', 1, 60, 1), cache.incr('hits', 5, 60, 1)], [1, 6]) }
  check("#{label} decr") { is(cache.decr('hits', 2), 4) }
  check("#{label} decr stops at zero") { is(cache.decr('hits', 100), 0) }
  check("#{label} decr creates with a default") { is([cache.decr('down', 1, 60, 10), cache.decr('down')], [10, 9]) }
  check("#{label} incr of text") do
    cache.set('text', 'abc', 0, raw: true)
    begin
      cache.incr('text') ? 'counted' : true
    rescue Dalli::DalliError
      true
    end
  end
  check("#{label} 64-bit counter") { is([cache.incr('wide', 1, 0, 2**63), cache.incr('wide', 1)], [2**63, 2**63 + 1]) }

  check("#{label} touch") { cache.set('t', 1, 60) && is(cache.touch('t', 120), true) }
  check("#{label} touch of a missing key") { none(cache.touch('missing', 10)) }
  check("#{label} gat") { is(cache.gat('t', 60), 1) }
  check("#{label} gat of a missing key") { is(cache.gat('missing', 60), nil) }
  check("#{label} expiry") do
    cache.set('brief', 1, 1)
    # The item may expire before it is touched.
    cache.set('touched', 1, 1) until cache.touch('touched', 100)
    deadline = Time.now + 10
    sleep 0.05 while cache.get('brief') && Time.now < deadline
    is([cache.get('brief'), cache.get('touched')], [nil, 1])
  end
  check("#{label} fetch") { is(%w[made again].map { |text| cache.fetch('fetched', 60) { text } }, %w[made made]) }

  check("#{label} stats") do
    stats = cache.stats.values.first
    missing = %w[pid uptime curr_items cmd_get cmd_set get_hits bytes limit_maxbytes evictions] - stats.keys
    is(missing, [])
  end
  check("#{label} stats settings") { cache.stats(:settings).values.first.key?('maxbytes') }
  check("#{label} reset_stats") { cache.reset_stats && is(cache.stats.values.first['get_hits'], '0') }
  check("#{label} flush") { cache.set('gone', 1) && cache.flush && is(cache.get('gone'), nil) }
  check("#{label} threads share one client") do
    cache.set('shared', 0, 0, raw: true)
    8.times.map { Thread.new { 250.times { cache.incr('shared') } } }.each(&:join)
    is(cache.get('shared', raw: true).to_i, 2000)
  end
  check("#{label} clients do not lose increments") do
    cache.delete('counter')
    8.times.map do
      Thread.new do
        own = Dalli::Client.new(@address, options)
        250.times { own.incr('counter', 1, 60, 1) || raise('refused') }
        own.close
      end
    end.each(&:join)
    is(cache.get('counter', raw: true).to_i, 2000)
  end
  cache.close
end

puts "Dalli #{Dalli::VERSION}"
meta = Gem::Version.new(Dalli::VERSION) >= Gem::Version.new('3.2.0')
binary = Gem::Version.new(Dalli::VERSION) < Gem::Version.new('5.0.0')
exercise('binary', { compress: true }) if binary
exercise('meta', { compress: true, protocol: :meta }) if meta
exit(@failed ? 1 : 0)
