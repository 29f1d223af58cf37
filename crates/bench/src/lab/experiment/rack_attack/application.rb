# A Sinatra application behind Rack::Attack. The lab starts two processes of the application. Each
# gets this script on its standard input, after the classes of the stores.
# Arguments: store, address of the store's server, own port, limit, threads.

require 'connection_pool'
require 'puma'
require 'rack/attack'
require 'sinatra/base'

store, address, port, limit, threads = ARGV
host, _, server_port = address.rpartition(':')
threads = Integer(threads)
# The time-out of stores, in seconds. It is long, because a request whose store times out passes
# uncounted.
patience = 30

Rack::Attack.cache.store =
  case store
  when 'none'
    nil
  when 'memory'
    require 'active_support'
    require 'active_support/cache'
    ActiveSupport::Cache::MemoryStore.new
  when 'dalli'
    require 'dalli'
    Dalli.logger.level = Logger::WARN
    # The pool gives a client to one thread at a time, so the client needs no lock.
    options = { socket_timeout: patience, threadsafe: false }
    ConnectionPool.new(size: threads) { Dalli::Client.new(address, options) }
  when 'larder'
    Rack::Attack::Larder::Store.new(address, timeout: patience, pool_size: threads)
  when 'redis'
    require 'redis'
    # Rack::Attack's own proxy, with a connection for each thread.
    ConnectionPool.wrap(size: threads) do
      redis = Redis.new(host: host, port: server_port, timeout: patience)
      Rack::Attack::StoreProxy::RedisProxy.new(redis)
    end
  when 'table'
    require 'mysql2'
    options = { host: host, port: Integer(server_port), username: 'bench', database: 'bench' }
    ConnectionPool.wrap(size: threads) { TableStore.new(Mysql2::Client.new(options)) }
  else
    abort "no store is called #{store}"
  end

# Windows of Rack::Attack begin at multiples of their length. A window of a day seldom ends during a
# measurement.
{ 'throughput' => 1_000_000_000, 'admission' => Integer(limit) }.each do |name, most|
  Rack::Attack.throttle("#{store}/#{name}", limit: most, period: 86_400) do |request|
    request.ip if request.path == "/#{name}"
  end
end

# An application that does no work besides answering.
class Application < Sinatra::Base
  GEMS = %w[puma rack sinatra rack-attack activesupport dalli redis mysql2].freeze

  get('/throughput') { "come in\n" }
  get('/admission') { "come in\n" }
  get('/versions') do
    gems = GEMS.filter_map { |name| Gem::Specification.find_all_by_name(name).first }
    ["Ruby #{RUBY_VERSION}", *gems.map { |gem| "#{gem.name} #{gem.version}" }].join(', ')
  end
end

Application.use Rack::Attack unless store == 'none'
Application.run!(
  bind: '127.0.0.1', port: Integer(port), server: 'puma', quiet: true,
  server_settings: { Threads: "#{threads}:#{threads}", Silent: true }
)
