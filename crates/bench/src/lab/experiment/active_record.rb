# Increments one counter of a MariaDB table through ActiveRecord, as a Rails application would, and
# prints its figures as one line of JSON.
# Arguments: port, threads, seconds of warm-up, seconds of measurement.

require 'active_record'
require 'json'

port, threads, warm_up, seconds = ARGV
threads = Integer(threads)
warm_up = Float(warm_up)
seconds = Float(seconds)

ActiveRecord::Base.establish_connection(
  adapter: 'mysql2', host: '127.0.0.1', port: Integer(port), username: 'bench',
  database: 'bench', pool: threads + 1, checkout_timeout: 30
)

# A row of the table `counters`.
class Counter < ActiveRecord::Base
  self.primary_key = 'key'

  INCREMENT = "INSERT INTO counters VALUES ('active_record', LAST_INSERT_ID(1)) " \
              'ON DUPLICATE KEY UPDATE value = LAST_INSERT_ID(value + 1)'.freeze

  def self.increment
    connection_pool.with_connection do |connection|
      connection.execute(INCREMENT)
      connection.select_value('SELECT LAST_INSERT_ID()')
    end
  end
end

now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
Counter.where(key: 'active_record').delete_all
start = now.call + warm_up
finish = start + seconds

results = Array.new(threads) do
  Thread.new do
    numbers = []
    latencies = []
    loop do
      before = now.call
      break if before >= finish

      numbers << Counter.increment
      after = now.call
      latencies << after - before if before >= start && after < finish
    end
    [numbers, latencies]
  end
end.map(&:value)

numbers = results.flat_map(&:first)
latencies = results.flat_map(&:last).sort
percentile = ->(share) { latencies.empty? ? 0 : latencies[(latencies.size * share).ceil - 1] * 1e6 }
puts JSON.generate(
  rate: latencies.size / seconds,
  acknowledged: numbers.size,
  duplicates: numbers.size - numbers.uniq.size,
  missing: ((1..numbers.size).to_a - numbers).size,
  counted: Counter.find('active_record').value,
  mean_us: latencies.empty? ? 0 : latencies.sum / latencies.size * 1e6,
  p50_us: percentile.call(0.5),
  p90_us: percentile.call(0.9),
  p95_us: percentile.call(0.95),
  p99_us: percentile.call(0.99),
  p999_us: percentile.call(0.999),
  p99999_us: percentile.call(0.99999),
  max_us: percentile.call(1.0),
  client: "Ruby #{RUBY_VERSION}, ActiveRecord #{ActiveRecord.version}"
)
